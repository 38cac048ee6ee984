"""Whole runs over the stream: real gRPC, TLS, and ClientApps that are built anew every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix import Run, SplitClient, adamw
from flwr_splitmix.clients.client import exchange
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.stream.certificates import Certificates, make_certificates
from flwr_splitmix.links.ticket import to_arrays
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import USHAPE_STRATEGIES, SplitStrategy, UShapeStrategy
from flwr_splitmix.testing.agreement import Results, check_same_results, read_results
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import text_toy
from tests.laws.makers import NAMES, maker, toy_for
from tests.links.fake_grid import NEVER, FakeGrid, OneAtATime, OnFakeGrid, text_app, toy_app

TOY = Toy(clients=4, tests=6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(files: Certificates) -> dict[str, Any]:
    return {
        "address": "127.0.0.1:0",
        "certificate": files.certificate,
        "key": files.key,
        "ca": files.ca,
    }


def make(name: str, run: Run | None, **options: Any) -> SplitStrategy:
    options = {"optimizer": adamw(0.01), "evaluation": "federated", **options}
    strategy = maker(name)(TOY.upper(), device="cpu", seed=7, run=run, **options)
    assert isinstance(strategy, SplitStrategy)
    return strategy


def start(strategy: SplitStrategy, link: StreamLink, grid: FakeGrid, rounds: int) -> None:
    start_from(TOY.lower().state_dict(), strategy, link, grid, rounds)


def start_from(
    weights: Mapping[str, Tensor],
    strategy: RoundLoop,
    link: StreamLink,
    grid: FakeGrid,
    rounds: int,
) -> None:
    strategy.link = OnFakeGrid(link, grid)
    strategy.start(None, to_arrays(weights), rounds)  # type: ignore[arg-type]


def results(run: Run, nodes: Path) -> Results:
    """Read what the server and the nodes have kept of a run."""
    found = read_results(run)
    tensors = dict(found.tensors)
    store = ClientStore(nodes / run.id)
    for index in range(TOY.clients):
        kept = store.load(index)
        assert kept is not None
        tensors |= {f"client {index}: {name}": t for name, t in kept[1].items()}
        tensors[f"client {index}: batches drawn"] = torch.tensor(kept[2]["drawn"])
    return replace(found, tensors=tensors)


def grid_of(
    name: str, nodes: Path, kind: type[SplitClient] = OneAtATime, **options: Any
) -> FakeGrid:
    shares = make(name, None).mixer.shares
    app = toy_app(TOY, kind, optimizer=adamw(0.01), shares=shares, **options)
    return FakeGrid(app, TOY.clients, **{"state-dir": str(nodes)})


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
    """The second Flower run knows nothing of the first: other contexts, another link."""
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


class StopIn(Observer):
    def __init__(self, server_round: int) -> None:
        self.round = server_round

    def on_step(self, event: StepDone) -> None:
        if (event.server_round, event.number) == (self.round, 1):
            raise ZeroDivisionError


def test_a_round_that_raises_frees_its_nodes(tls: dict[str, Any], tmp_path: Path) -> None:
    grid = grid_of("PSL", tmp_path)
    with pytest.raises(ZeroDivisionError):
        start(make("PSL", None, observers=[StopIn(1)]), StreamLink(**tls), grid, 2)
    grid.wait()
    assert "the ServerApp has ended the round" in str(grid.errors())


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
        gradient, found = (
            before
            - torch.cat(
                [
                    states[kind][f"client {client}: segment.{name}"].flatten()
                    for name, _ in TOY.lower().named_parameters()
                ]
            )
            for kind in ("keep", wire)
        )
        assert (gradient - found).norm() <= tolerance * gradient.norm()
        assert not torch.equal(gradient, found)
    # 4 clients x 4 examples x 6 patches, and their labels, which are never narrowed.
    per_scale = 4 if wire == "float16" else 0
    patches = 4 * 6
    assert run.rows[0]["uplink_bytes"] == 4 * (patches * size + per_scale + 4 * 8)
    assert run.rows[0]["downlink_bytes"] == 4 * (patches * size + per_scale)


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


STEP_SECONDS, LATE_SECONDS = 4, 6


class Odd(OneAtATime):
    """Client 1 does something odd."""

    fault = ""

    def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
        self.index = order.client
        if self.fault == "attach" and self.index == 1:
            raise ValueError("Jane Doe, born 1970")
        return super().attach(order, arrays)

    def run(self, *arguments: Any) -> dict[str, Any]:
        reply = super().run(*arguments)
        if self.fault == "late" and self.index == 1:
            time.sleep(LATE_SECONDS)
        return reply

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        reply = super().step(**arguments)
        if self.index == 1 and reply:
            fault = self.fault
            if fault == "raise":
                raise ValueError("Jane Doe, born 1970")
            if fault == "nan":
                reply["smashed"][0][0, 0, 0] = float("nan")
            if fault == "shape":
                reply["smashed"][0] = reply["smashed"][0][:, :-1]
            if fault == "dtype":
                reply["smashed"][0] = reply["smashed"][0].float()
            if fault == "odd":
                reply["smashed"] = {1, 2}
        return reply


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("attach", "ValueError; the log of its node says more"),
        ("raise", "ValueError; the log of its node says more"),
        ("late", "did not answer step within 4 s"),
        ("nan", "uploaded NaN or infinite numbers"),
        ("shape", "uploaded (4, 5, 3) of torch.float64, expected (4, 6, 3)"),
        ("dtype", "uploaded (4, 6, 3) of torch.float32, expected (4, 6, 3) of torch.float64"),
        ("odd", "its reply cannot travel: set cannot travel"),
    ],
)
def test_a_faulty_client_costs_its_own_contribution(
    fault: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = type("Faulty", (Odd,), {"fault": fault})
    grid = grid_of("PSL", tmp_path / "nodes", kind)
    strategy = make("PSL", None, evaluation="none", steps_per_round=2)
    link = StreamLink(address="127.0.0.1:0", step_timeout=STEP_SECONDS, reattach_timeout=1)
    caplog.set_level("WARNING", logger="flwr.splitmix")
    start(strategy, link, grid, 1)
    row = strategy.recorder.metrics.rows[0]
    assert (row["clients_alive"], row["clients_failed"]) == (3, 1)
    assert f"round 1 went on without client 1: {reason}" in caplog.text
    assert strategy.trained == {0: 1, 2: 1, 3: 1}
    grid.wait()
    (said,) = grid.errors()
    assert "Jane" not in said
    if fault == "late":  # when it has done, nobody is there any more who could tell it
        assert said.startswith("could not reach the ServerApp at 127.0.0.1:")
    elif fault != "attach":
        assert said.startswith("left out of the round: ")


def test_below_min_nodes_the_run_ends_with_a_sentence(tmp_path: Path) -> None:
    kind = type("Faulty", (Odd,), {"fault": "raise"})
    grid = grid_of("PSL", tmp_path / "nodes", kind)
    strategy = make("PSL", None, min_nodes=4)
    with pytest.raises(LinkError, match="3 clients are left, min-nodes is 4: client 1: ValueError"):
        start(strategy, StreamLink(address="127.0.0.1:0"), grid, 1)
    grid.wait()


def test_a_client_that_missed_a_round_takes_part_in_the_next(tmp_path: Path) -> None:
    class Sometimes(Odd):
        fault = "late"

    grid = grid_of("PSL", tmp_path / "nodes", Sometimes)
    strategy = make("PSL", None, evaluation="none", steps_per_round=1)

    class Recover(Observer):
        def on_round(self, event: Any) -> None:
            Sometimes.fault = ""

    strategy.observers.append(Recover())
    link = StreamLink(address="127.0.0.1:0", step_timeout=STEP_SECONDS, reattach_timeout=1)
    start(strategy, link, grid, 2)
    assert [row["clients_alive"] for row in strategy.recorder.metrics.rows] == [3, 4]
    grid.wait()


def test_another_model_is_refused_at_attach_whatever_state_is_kept(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    for width, expected in ((3, 4), (5, 0)):
        other = replace(TOY, width=width)
        grid = FakeGrid(toy_app(other), 4, **{"state-dir": str(nodes)})
        strategy = make("PSL", None, evaluation="none")
        link = StreamLink(address="127.0.0.1:0", run="same")
        if expected:
            start(strategy, link, grid, 1)
        else:
            with pytest.raises(
                LinkError, match=r"does not fit this client's: it has position \(6, 3\)"
            ):
                start(strategy, link, grid, 2)


def test_another_cut_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class OtherCut(OneAtATime):
        def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
            return {**super().attach(order, arrays), "patches": 12}

    grid = grid_of("PSL", tmp_path, OtherCut)
    with pytest.raises(LinkError, match=r"12 patches.* x 3, the upper segment expects "):
        start(make("PSL", None), StreamLink(address="127.0.0.1:0"), grid, 1)


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


def test_a_node_that_leaves_the_federation_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def vanish(message: Any, context: Any) -> Any:
        if context.node_id == 101 and message.metadata.message_type == "train":
            grid.online.discard(101)
            NEVER.wait()
        return app(message, context)

    app: Callable[..., Any] = toy_app(TOY)
    grid = FakeGrid(vanish, TOY.clients, **{"state-dir": str(tmp_path)})
    strategy = make("PSL", None, evaluation="none")
    caplog.set_level("WARNING", logger="flwr.splitmix")
    start(strategy, StreamLink(address="127.0.0.1:0", attach_timeout=600), grid, 1)
    assert "client 1: is not connected to the SuperLink any more" in caplog.text
    assert strategy.trained.keys() == {0, 2, 3}


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    first = StreamLink(address="127.0.0.1:0")
    first.open(None)
    taken = first.dialled
    with pytest.raises(LinkError, match=f"cannot listen on {taken}; is its port taken"):
        StreamLink(address=taken).open(None)
    first.close()
    again = StreamLink(address=taken)
    again.open(None)
    again.close()


def test_the_link_works_inside_a_run_only() -> None:
    link = StreamLink(address="127.0.0.1:0")
    with pytest.raises(LinkError, match="inside a Flower run only"):
        link.directory(None, 1)
