"""Batches in parts: what is refused, rounded and chosen, and nodes that drop out on the way."""

from __future__ import annotations

import logging
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.observers import Observer
from flwr_splitmix.sandbox.superlink import free_port
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.part_count import (
    PartCount,
    StepSeconds,
    best_parts,
    largest_divisor,
)
from flwr_splitmix.strategies import PSL, BatchShuffleSL, SplitStrategy
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.toy import Toy, sgd
from tests.clients.own_segments import DATA, Lower
from tests.links.fake_grid import FakeGrid, NodeKilled, OneAtATime, OnFakeGrid, toy_app
from tests.links.stream.peers import Proxy

# Without dropout: client and server compute at the same time, in one process with one generator.
TOY = Toy(clients=3, batch_norm=False, dropout=0.0)


@pytest.mark.parametrize("micro_batches", [0, -1, 65, 1.5, True, "many", None])
def test_what_is_no_number_of_parts_is_named(micro_batches: Any) -> None:
    with pytest.raises(
        ValueError, match=r"micro_batches is .*; it must be an integer from 1 to 64"
    ):
        PartCount(micro_batches)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"server_update": "sequential"}, "server_update is 'sequential', .* 'sum' or 'mean'"),
        (
            {"upper": nn.Sequential(nn.BatchNorm1d(3))},
            "upper segment has BatchNorm, .*micro_batches 1",
        ),
        ({"pace": Pace("skip")}, "straggler is 'skip', .* straggler 'wait'"),
    ],
)
@pytest.mark.parametrize("micro_batches", [2, "auto"])
def test_what_needs_whole_batches_is_refused(
    options: dict[str, Any], sentence: str, micro_batches: Any
) -> None:
    arguments = {"upper": nn.Identity(), "server_update": "sum", **options}
    with pytest.raises(ValueError, match=f"micro_batches is {micro_batches!r}, but .*{sentence}"):
        PSL(arguments.pop("upper"), num_classes=2, micro_batches=micro_batches, **arguments)


def test_edges_that_exchange_patches_within_a_batch_need_it_whole() -> None:
    def make(kappa: float) -> SplitStrategy:
        return BatchShuffleSL(
            nn.Identity(), num_classes=2, labels=[], kappa=kappa, server_update="sum",
            micro_batches=2,
        )  # fmt: skip

    with pytest.raises(ValueError, match="micro_batches is 2, but FrozenEdge needs a whole batch"):
        make(0.4)
    make(1.0)


@pytest.mark.parametrize(
    ("batch", "most", "parts"), [(32, 8, 8), (32, 5, 4), (31, 4, 1), (4, 64, 4), (30, 4, 3)]
)
def test_a_number_that_does_not_divide_a_batch_is_rounded(
    batch: int, most: int, parts: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert largest_divisor(batch, most) == parts
    count = PartCount(most)
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        for _ in range(2):
            count.begin_round(batch, overlaps=True)
    assert count.parts == parts
    warning = f"micro-batches is {most}, which does not divide a batch of {batch}: it is cut into "
    assert [record.getMessage() for record in caplog.records] == (
        [] if parts == most else [warning + str(parts)]
    )


@pytest.mark.parametrize(
    ("up", "server", "down", "trip", "parts"),
    [
        (2.52, 0.8, 0.63, 0.05, 12),  # of `benchmarks.edge`: lte
        (0.63, 0.8, 0.25, 0.01, 16),  # wifi: more would do, 16 is the bound
        (0.01, 0.8, 0.01, 0.0, 1),  # nothing to gain
        (0.01, 0.01, 0.01, 0.0, 1),  # too short to be cut
        (0.0, 0.0, 0.0, 0.1, 1),
    ],
)
def test_the_fewest_parts_that_keep_the_longest_stage_busy(
    up: float, server: float, down: float, trip: float, parts: int
) -> None:
    assert best_parts({"up": up, "server": server, "down": down}, trip) == parts


def test_stages_follow_from_how_long_each_call_took() -> None:
    """Two clients, two parts: 0.1 s there and back, 0.4 and 0.6 s up, 0.2 and 0.3 s down."""
    seconds = StepSeconds(2)
    spent = {0: 1.0, 1: 5.0}
    for part, (a, b) in enumerate([(0.3, 0.4), (0.2, 0.3)]):
        after = {0: spent[0] + a, 1: spent[1] + b}
        seconds.uploaded(part, spent, after)
        spent = after
    for a, b in [(0.0, 0.0), (0.2, 0.25)]:
        after = {0: spent[0] + a, 1: spent[1] + b}
        seconds.delivered(spent, after)
        spent = after
    assert [seconds.trip, seconds.up, seconds.down] == pytest.approx([0.1, 0.6, 0.3])


class Watch(Observer):
    """Keeps steps and rounds, and by step into how many parts it was cut."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []
        self.rounds: list[RoundDone] = []
        self.parts: dict[tuple[int, int], int] = {}

    def on_exchange(self, event: Exchange) -> None:
        if "plan" in event.payload:
            place = (event.server_round, event.payload["number"])
            self.parts[place] = event.payload.get("parts", 0)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


def make(parts: Any, watch: Watch, steps: int = 3, min_nodes: int = 2) -> PSL:
    return PSL(
        TOY.upper(), optimizer=sgd(0.1), schedule=constant, server_update="sum",
        steps_per_round=steps, device="cpu", seed=3, observers=[watch], micro_batches=parts,
        min_nodes=min_nodes,
    )  # fmt: skip


class Kept(OneAtATime):
    """Keeps what its segment was at the end of a round."""

    final_weights: ClassVar[dict[int, Any]] = {}

    def release(self) -> Any:
        self.final_weights[self.order.client] = self.weights()
        return super().release()

    def run(self, *arguments: Any) -> dict[str, Any]:
        if arguments[0] == "encode_part":  # outside of the turn: the others compute meanwhile
            self.before(self.order.client, self.order.server_round, arguments[1])
        return super().run(*arguments)

    def before(self, client: int, server_round: int, arguments: Any) -> None:
        """Be in the way of a part."""


def over_stream(
    strategy: SplitStrategy, home: Path, kind: type[Kept], rounds: int = 1, **options: Any
) -> None:
    app = toy_app(TOY, kind, optimizer=sgd(0.1))
    grid = FakeGrid(app, TOY.clients, **{"state-dir": str(home)})
    link_options = {"address": "127.0.0.1:0", "attach_timeout": 60, "step_timeout": 60, **options}
    strategy.link = OnFakeGrid(StreamLink(**link_options), grid)
    strategy.start(None, to_arrays(TOY.lower().state_dict()), rounds)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_kept(outside_of_a_run: None) -> None:
    """Forget what segments of an earlier test have kept."""
    Kept.final_weights = {}


class Killed(Kept):
    """Dies between two parts of a batch, without a word."""

    half: ClassVar[threading.Event]

    def before(self, client: int, server_round: int, arguments: Any) -> None:
        place = (client, server_round, arguments["number"], arguments["part"])
        if place == (0, 1, 1, 2):
            assert self.half.wait(60)
            raise NodeKilled


def test_a_node_killed_between_two_parts_costs_its_step_only(tmp_path: Path) -> None:
    watch = Watch()
    strategy = make(4, watch)
    Killed.half, learned = threading.Event(), count(1)
    learn_part = strategy.upper.learn_part

    def learn(*arguments: Any, **named: Any) -> Any:
        result = learn_part(*arguments, **named)
        if next(learned) == 4 + 2:  # half of the second step
            Killed.half.set()
        return result

    strategy.upper.learn_part = learn  # type: ignore[method-assign]
    over_stream(strategy, tmp_path, Killed, rounds=2, reattach_timeout=0.5)
    first, second = watch.rounds
    assert first.steps == second.steps == 3
    assert first.failures.keys() == {0}
    assert "cut off" in first.failures[0]
    assert second.failures == {}
    assert second.clients_alive == 3
    came = [set(step.uploads) for step in watch.steps]
    assert came == [{0, 1, 2}, {1, 2}, {1, 2}, *[{0, 1, 2}] * 3]
    # What has come of it is in the mixture, and is learned from.
    mixed = watch.steps[1].mixed
    assert mixed is not None
    assert [source.members[0].client for source in mixed.sources] == [0, 1, 2]
    empty = [not bool(row.any()) for row in mixed.smashed]
    assert empty == [False, False, True, True, *[False] * 8]
    assert all(step.loss is not None and bool(step.loss.isfinite()) for step in watch.steps)


class Cutting(Kept):
    """Breaks all connections between two parts of a batch, once."""

    proxy: ClassVar[list[Proxy]] = []

    def before(self, client: int, server_round: int, arguments: Any) -> None:
        if (client, arguments["number"], arguments["part"]) == (1, 1, 2) and self.proxy:
            self.proxy.pop().cut()


def test_connections_that_break_between_two_parts_change_nothing(tmp_path: Path) -> None:
    local = TOY.make_clients(sgd(0.1))
    in_process = make(4, Watch(), min_nodes=3)
    in_process.fit(local, 1)
    streamed = make(4, Watch(), min_nodes=3)
    address = f"127.0.0.1:{free_port()}"
    proxy = Proxy(address)
    Cutting.proxy = [proxy]
    over_stream(streamed, tmp_path, Cutting, address=address, advertise=proxy.address)
    proxy.close()
    assert Cutting.proxy == []
    assert proxy.accepted > TOY.clients
    check_same_tensors(
        "upper", in_process.upper.module.state_dict(), streamed.upper.module.state_dict()
    )
    for client, local_client in enumerate(local):
        check_same_tensors(f"client {client}", local_client.weights(), Kept.final_weights[client])


def test_a_client_that_cannot_be_cut_says_so_and_what_to_do() -> None:
    watch = Watch()
    strategy = make(2, watch)
    clients = Toy(clients=3, dropout=0.0).make_clients(sgd(0.1))  # with BatchNorm
    with pytest.raises(LinkError, match=r"lower segment has BatchNorm.* set micro-batches to 1"):
        strategy.fit(clients, 1)


def test_auto_is_one_where_nothing_overlaps(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        make("auto", watch).fit(TOY.make_clients(sgd(0.1)), 2)
    assert set(watch.parts.values()) == {0}
    messages = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("micro-batches")
    ]
    assert messages == ["micro-batches: 1, as nothing overlaps over this link"]


def test_auto_chooses_by_what_the_first_steps_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way up of 0.4 s a batch, and at the server as long."""

    class Slow(Kept):
        def before(self, client: int, server_round: int, arguments: Any) -> None:
            time.sleep(0.4 / arguments["parts"])

    strategy = make("auto", watch := Watch(), steps=5)
    learn_part = strategy.upper.learn_part

    def slowly(mixed: Any, batch: int, *arguments: Any, **named: Any) -> Any:
        time.sleep(0.4 * len(mixed.smashed) / len(mixed.sources) / batch)
        return learn_part(mixed, batch, *arguments, **named)

    monkeypatch.setattr(strategy.upper, "learn_part", slowly)
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        over_stream(strategy, tmp_path, Slow)
    assert watch.parts == {(1, 0): 2, (1, 1): 2, (1, 2): 2, (1, 3): 4, (1, 4): 4}
    messages = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("micro-batches")
    ]
    assert len(messages) == 1
    assert messages[0].startswith("micro-batches: 4 parts of 1 sample: a batch takes ")


class Counting(nn.Module):
    """Counts its calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / self.get_buffer("calls").add_(int(self.training)).clamp(min=1.0)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("counting", ["lower", "upper", "neither"])
def test_a_buffer_that_each_part_changes_is_warned_of_once(
    counting: str, parts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters, running means and power iterations move once for each part, without a word."""
    lower = Lower(Counting() if counting == "lower" else None)
    first = Counting() if counting == "upper" else nn.Identity()
    upper = nn.Sequential(first, nn.Flatten(), nn.Linear(6, 3))
    client = SplitClient(lower, DATA, batch_size=4, device="cpu")
    strategy = PSL(upper, num_classes=3, server_update="mean", micro_batches=parts, device="cpu")
    strategy.fit([client], num_rounds=2)
    warnings = [line for line in caplog.messages if "changes buffers in each forward" in line]
    expected = 0 if parts == 1 or counting == "neither" else 1
    assert len(warnings) == expected
    assert all(f"the {counting} segment changes" in line and "calls)" in line for line in warnings)
