"""Whole runs over the stream agree with local ones: real gRPC, TLS."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, MetricRecord

from flwr_splitmix import Run, SplitClientApp, adamw
from flwr_splitmix.events import RoundBegun
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy
from flwr_splitmix.testing.agreement import check_same_results, read_results
from flwr_splitmix.testing.toy import sgd
from flwr_splitmix.testing.toy_texts import text_toy
from tests.laws.makers import NAMES, toy_for
from tests.links.fake_grid import FakeGrid, text_app, toy_app
from tests.links.kept import results
from tests.links.rounds.streamed import TOY, StopIn, grid_of, make, start, start_from


@pytest.mark.parametrize("name", NAMES)
def test_law_4_the_stream_agrees_with_local_clients_bit_for_bit(
    name: str, tls: dict[str, Any], tmp_path: Path
) -> None:
    toy = toy_for(name, clients=4, tests=6)
    local = make(name, Run.create({}, name="local", home=tmp_path))
    shares = local.mixer.shares
    local.fit(toy.make_clients(adamw(0.01), shares=shares), 3)
    run = Run.create({}, name="stream", home=tmp_path)
    app = toy_app(toy, optimizer=adamw(0.01), shares=shares)
    grid = FakeGrid(app, toy.clients, **{"state-dir": str(tmp_path / "nodes")})
    start(make(name, run), StreamLink(**tls, run=run.id), grid, 3)
    grid.wait()
    assert local.recorder.run is not None
    check_same_results(read_results(local.recorder.run), results(run, tmp_path / "nodes"))
    for a, b in zip(local.recorder.run.rows, run.rows, strict=True):
        assert (a["uplink_bytes"], a["downlink_bytes"]) == (b["uplink_bytes"], b["downlink_bytes"])


@pytest.mark.parametrize("name", sorted(USHAPE_STRATEGIES))
def test_law_4_the_stream_agrees_with_local_clients_of_the_u_shape(
    name: str, tls: dict[str, Any], tmp_path: Path
) -> None:
    toy = text_toy(name, clients=TOY.clients, tests=6)

    def strategy_of(run: Run) -> UShapeStrategy:
        return USHAPE_STRATEGIES[name](
            toy.server(),
            device="cpu",
            seed=7,
            run=run,
            optimizer=adamw(0.01),
            evaluation="federated",
        )

    local = Run.create({}, name="local", home=tmp_path)
    strategy_of(local).fit(toy.clients_for(None, adamw(0.01)), 3)
    first = toy.clients_for()[0].weights()
    run, nodes = Run.create({}, name="stream", home=tmp_path), tmp_path / "nodes"
    grid = FakeGrid(text_app(toy, adamw(0.01)), toy.clients, **{"state-dir": str(nodes)})
    start_from(first, strategy_of(run), StreamLink(**tls, run=run.id), grid, 3)
    grid.wait()
    check_same_results(read_results(local), results(run, nodes))
    for a, b in zip(local.rows, run.rows, strict=True):
        assert (a["uplink_bytes"], a["downlink_bytes"]) == (b["uplink_bytes"], b["downlink_bytes"])


@pytest.mark.parametrize(
    "formats",
    [
        {},
        {"wire_dtype": "int4-stochastic", "wire_dtype_down": "int8-stochastic"},
        {"wire_dtype": "int8", "wire_feedback": True},
    ],
    ids=["as they are", "rounded by chance", "feedback"],
)
def test_law_5_a_resumed_run_finds_its_states_on_the_nodes(
    formats: dict[str, Any], tls: dict[str, Any], tmp_path: Path
) -> None:
    """The second Flower run shares nothing with the first: other contexts, another link."""
    nodes, tls = tmp_path / "nodes", {**tls, **formats}
    whole = Run.create({}, name="whole", home=tmp_path)
    start(make("PSL", whole), StreamLink(**tls, run=whole.id), grid_of("PSL", nodes), 4)
    run = Run.create({}, name="stopped", home=tmp_path)
    stopped = make("PSL", run, observers=[StopIn(3)])
    with pytest.raises(ZeroDivisionError):
        start(stopped, StreamLink(**tls, run=run.id), grid_of("PSL", nodes), 4)
    (run.path / "checkpoints" / "round-000002.safetensors").unlink()
    resumed = Run.open(run.id, home=tmp_path)
    start(make("PSL", resumed), StreamLink(**tls, run=run.id), grid_of("PSL", nodes), 4)
    check_same_results(results(whole, nodes), results(resumed, nodes))


def test_another_run_does_not_come_between_a_run_and_its_states_on_the_nodes(
    tls: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the run's id, and begins at its first round, which would delete the states."""
    caplog.set_level(logging.DEBUG)
    nodes = tmp_path / "nodes"
    whole = Run.create({}, name="whole", home=tmp_path)
    start(make("PSL", whole), StreamLink(**tls), grid_of("PSL", nodes), 3)
    run = Run.create({}, name="stopped", home=tmp_path)
    with pytest.raises(ZeroDivisionError):
        start(make("PSL", run, observers=[StopIn(3)]), StreamLink(**tls), grid_of("PSL", nodes), 3)
    other = Run.create({}, name="other", home=tmp_path)
    for own in (other, None):
        grid = grid_of("PSL", nodes)
        with pytest.raises(LinkError, match=f"the states of run {run.id} on this node belong to"):
            start(make("PSL", own), StreamLink(**tls, run=run.id), grid, 3)
        grid.wait()
    resumed = Run.open(run.id, home=tmp_path)
    start(make("PSL", resumed), StreamLink(**tls), grid_of("PSL", nodes), 3)
    check_same_results(results(whole, nodes), results(resumed, nodes))
    assert not any(key in caplog.text for key in (run.state_key(), other.state_key()))


@pytest.mark.parametrize(
    ("wire", "tolerance", "size"),
    [
        ("float32", 1e-6, 4 * 3),
        ("bfloat16", 4e-2, 2 * 3),
        ("float16", 1e-2, 2 * 3),
        ("int8", 8e-2, 1 * 3 + 4),
        ("int8-stochastic", 16e-2, 1 * 3 + 4),
    ],
)
def test_law_1_holds_to_the_formats_precision(
    wire: str, tolerance: float, size: int, tmp_path: Path
) -> None:
    """One step of SGD with lr 1 turns gradients into weights; BatchNorm magnifies the errors."""
    states = {}
    options = {"optimizer": sgd(), "evaluation": "none", "steps_per_round": 1}
    for link_wire in ("keep", wire):
        run = Run.create({}, name=link_wire, home=tmp_path)
        strategy = make("PSL", run, **options)
        grid = FakeGrid(toy_app(TOY, optimizer=sgd()), 4, **{"state-dir": str(tmp_path / "nodes")})
        link = StreamLink(address="127.0.0.1:0", run=run.id, wire_dtype=link_wire)
        start(strategy, link, grid, 1)
        states[link_wire] = results(run, tmp_path / "nodes").tensors
    before = torch.cat([p.detach().flatten() for p in TOY.lower().parameters()])
    for client in range(TOY.clients):
        gradient, narrowed = (
            before
            - torch.cat(
                [
                    states[kind][f"client {client}: segment.{name}"].flatten()
                    for name, _ in TOY.lower().named_parameters()
                ]
            )
            for kind in ("keep", wire)
        )
        assert (gradient - narrowed).norm() <= tolerance * gradient.norm()
        assert not torch.equal(gradient, narrowed)
    # 4 clients x 4 examples x 6 patches, and their labels, which always keep their type.
    per_scale = 4 if wire == "float16" else 0
    patches = 4 * 6
    assert run.rows[0]["uplink_bytes"] == 4 * (patches * size + per_scale + 4 * 8)
    assert run.rows[0]["downlink_bytes"] == 4 * (patches * size + per_scale)


class Begun(Observer):
    """Keeps whether each round's uploads are rounded."""

    def __init__(self) -> None:
        self.rounded: list[bool] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.rounded.append(event.rounded)


@pytest.mark.parametrize(("wire", "rounded"), [("keep", False), ("bfloat16", True)])
def test_ledgers_are_told_whether_uploads_are_rounded(
    wire: str, rounded: bool, tmp_path: Path
) -> None:
    """A sum of rounded uploads hides no more than each of them."""
    run, begun = Run.create({}, name="run", home=tmp_path), Begun()
    strategy = make("PSL", run, evaluation="none", steps_per_round=1, observers=[begun])
    link = StreamLink(address="127.0.0.1:0", run=run.id, wire_dtype=wire)
    start(strategy, link, grid_of("PSL", tmp_path / "nodes"), 1)
    assert begun.rounded == [rounded]


def test_each_direction_has_its_own_format(tmp_path: Path) -> None:
    run = Run.create({}, name="int4", home=tmp_path)
    strategy = make("PSL", run, evaluation="none", steps_per_round=2)
    grid = FakeGrid(toy_app(TOY, optimizer=sgd()), 4, **{"state-dir": str(tmp_path / "nodes")})
    link = StreamLink(address="127.0.0.1:0", wire_dtype="int4", wire_dtype_down="float16")
    start(strategy, link, grid, 1)
    # 2 steps, 4 clients x 4 examples x 6 patches of 3 numbers: in 2 bytes and a scale, or in 6.
    patches = 4 * 6
    assert run.rows[0]["clients_failed"] == 0
    assert run.rows[0]["uplink_bytes"] == 2 * 4 * (patches * (2 + 4) + 4 * 8)
    assert run.rows[0]["downlink_bytes"] == 2 * 4 * (patches * 6 + 4)


def test_an_evaluation_leaves_no_trace_at_the_client(tmp_path: Path) -> None:
    rows: dict[str, Any] = {}
    for evaluation in ("none", "federated"):
        run = Run.create({}, name=evaluation, home=tmp_path)
        nodes = tmp_path / evaluation
        strategy = make("PSL", run, evaluation=evaluation)
        start(strategy, StreamLink(address="127.0.0.1:0", run=run.id), grid_of("PSL", nodes), 2)
        rows[evaluation] = results(run, nodes).tensors
    assert all(torch.equal(rows["none"][name], t) for name, t in rows["federated"].items())


def test_states_live_in_flowers_context_where_a_node_has_no_directory(tmp_path: Path) -> None:
    run = Run.create({}, name="stream", home=tmp_path)
    app = toy_app(TOY, optimizer=adamw(0.01))
    grid = FakeGrid(app, TOY.clients, **{"state-dir": ""})
    start(make("PSL", run), StreamLink(address="127.0.0.1:0", run=run.id), grid, 3)
    local = Run.create({}, name="local", home=tmp_path)
    make("PSL", local).fit(TOY.make_clients(adamw(0.01)), 3)
    for a, b in zip(run.rows, local.rows, strict=True):
        assert a["loss"] == b["loss"]
    assert all("splitmix-state" in context.state for context in grid.contexts.values())


class FirstStates(Observer):
    """Keeps the round of the state with which each client first takes part."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.rounds: dict[int, int] = {}

    def on_begin(self, event: RoundBegun) -> None:
        for client, description in event.descriptions.items():
            self.of.setdefault(client, description.state_round)
            self.rounds.setdefault(client, event.server_round)


@pytest.mark.parametrize("where", ["nodes", ""])
def test_a_second_start_in_one_flower_run_begins_anew(where: str, tmp_path: Path) -> None:
    """Clients that it first draws in round 2 do not continue from what the first taught."""
    states = {"state-dir": where and str(tmp_path / where)}
    app = toy_app(TOY, optimizer=adamw(0.01))
    grid = FakeGrid(app, TOY.clients, **states)
    start(make("PSL", None), StreamLink(address="127.0.0.1:0"), grid, 1)
    losses = []
    for shared in (grid, FakeGrid(app, TOY.clients, **states)):
        first = FirstStates()
        strategy = make(
            "PSL", None, evaluation="none", min_nodes=2, fraction_train=0.5, observers=[first]
        )
        start(strategy, StreamLink(address="127.0.0.1:0"), shared, 4)
        assert set(first.of.values()) == {0}
        assert max(first.rounds.values()) > 1
        losses.append([row["loss"] for row in strategy.rows])
    assert losses[0] == losses[1]


def test_a_run_keeps_into_how_many_parts_its_nodes_divide_the_data(tmp_path: Path) -> None:
    """Attacks need it; the clients that finish a round do not report it."""
    run, grid = Run.create({}, name="run", home=tmp_path), grid_of("PSL", tmp_path / "nodes")
    grid.contexts[102].node_config["num-partitions"] = 9
    del grid.contexts[103].node_config["num-partitions"]
    for rounds in (1, 2):
        opened = Run.open(run.id, home=tmp_path)
        strategy = make("PSL", opened, evaluation="none", steps_per_round=1)
        start(strategy, StreamLink(address="127.0.0.1:0", run=run.id), grid, rounds)
        checkpoint = opened.checkpoints.load()
        assert (checkpoint.round, checkpoint.meta["partitions"]) == (
            rounds,
            {"0": 4, "1": 4, "2": 9},
        )
        grid.online.discard(100)  # it is not there in the second round


def test_a_run_forgets_a_number_of_parts_that_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Attacks would take the last one for that of all rounds."""
    run, grid = Run.create({}, name="run", home=tmp_path), grid_of("PSL", tmp_path / "nodes")
    for rounds, parts in ((1, 4), (2, 9), (3, 9)):
        grid.contexts[102].node_config["num-partitions"] = parts
        opened = Run.open(run.id, home=tmp_path)
        strategy = make("PSL", opened, evaluation="none", steps_per_round=1)
        start(strategy, StreamLink(address="127.0.0.1:0", run=run.id), grid, rounds)
        expected = {"0": 4, "1": 4, "2": 4 if rounds == 1 else 0, "3": 4}
        assert opened.checkpoints.load().meta["partitions"] == expected
    (warning,) = (line for line in caplog.messages if "changed during the run" in line)
    assert warning.startswith(
        "num-partitions of 1 node changed during the run, such as that of client 2 from 4 to 9: "
    )


def test_metrics_that_a_mod_adds_to_an_evaluation_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those of training have a column."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        name = "battery" if reply.metadata.message_type == "train" else "fairness"
        reply.content["of-mod"] = MetricRecord({name: 0.5})
        return reply

    grid = FakeGrid(SplitClientApp(toy_app(TOY).client_fn, mods=[mod]), TOY.clients)
    strategy = make("SFL", None)
    start(strategy, StreamLink(address="127.0.0.1:0"), grid, 3)
    grid.wait()
    assert [row["train_battery"] for row in strategy.rows] == [0.5] * 3
    assert [line for line in caplog.messages if "left out" in line] == [
        "left out of the run's metrics: 'fairness', which a mod adds to replies of an evaluation; "
        "add them to replies of training"
    ]
