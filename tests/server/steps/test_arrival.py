"""Sequential updates in order of arrival: exact for the order that it was, over every link."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flwr_splitmix.data.batches import Batches
from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL, SplitStrategy
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.laws import Toy, check_resume_equals_uninterrupted, check_wire
from flwr_splitmix.testing.toy import sgd
from flwr_splitmix.testing.whole import Whole
from tests.laws.makers import maker
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app
from tests.waiting import wait_for

ARRIVAL = Pace(group_order="arrival")
# Without dropout, whose draws differ between a step in one piece and one by groups.
TOY = Toy(clients=4, dropout=0.0)
NAMES = ("PSL", "MixupSL", "CutMixSL")


class Watch(Observer):
    """Keeps the order in which each step's groups were learned from, by a member of each.

    And how many uploads of each client have been taken so far.
    """

    def __init__(self) -> None:
        self.came: Counter[int] = Counter()
        self.orders: list[list[int]] = []
        self.uploads: list[set[int]] = []
        self.rounds: list[RoundDone] = []

    def on_exchange(self, event: Exchange) -> None:
        self.came[event.client] += event.direction == "up" and "smashed" in event.payload

    def on_step(self, event: StepDone) -> None:
        assert event.mixed is not None
        self.orders.append([s.members[0].client for s in event.mixed.sources])
        self.uploads.append(set(event.uploads))
        assert event.gradients.keys() == event.uploads.keys()

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


class InOrder(Whole):
    """One unsplit graph, whose groups are taken in an order that is given."""

    orders: list[list[int]]

    def _sequential_steps(self, mixed: Any, order: Any) -> None:
        clients = [source.members[0].client for source in mixed.sources]
        super()._sequential_steps(mixed, [clients.index(client) for client in self.orders.pop(0)])


def check_equals_whole(strategy: SplitStrategy, segments: list[Any], watch: Watch) -> None:
    """Law 1 with the order in which the groups arrived."""
    whole = InOrder(
        [TOY.lower() for _ in range(TOY.clients)],
        TOY.upper(),
        [Batches(TOY.data(i), TOY.batch) for i in range(TOY.clients)],
        strategy.mixer,
        "sequential",
        strategy.seed,
    )
    whole.orders = [list(order) for order in watch.orders]
    shape = SmashedShape(TOY.batch, TOY.patches, TOY.width, TOY.prefix, TOY.grid, TOY.classes)
    for number in range(len(watch.orders)):
        whole.step(shape, 1, number)
    uppers = whole.upper.state_dict(), strategy.upper.module.state_dict()
    check_same_tensors("upper segment", *uppers, 1e-10)
    for index, (lower, segment) in enumerate(zip(whole.lowers, segments, strict=True)):
        check_same_tensors(f"lower segment of client {index}", lower.state_dict(), segment, 1e-10)


def make(name: str, watch: Watch, pace: Pace, steps: int) -> SplitStrategy:
    strategy = maker(name)(
        TOY.upper(),
        optimizer=sgd(),
        schedule=constant,
        steps_per_round=steps,
        device="cpu",
        seed=3,
        observers=[watch],
        pace=pace,
    )
    assert isinstance(strategy, SplitStrategy)
    return strategy


@pytest.mark.parametrize("name", NAMES)
def test_law_1_with_local_clients(name: str) -> None:
    watch = Watch()
    strategy = make(name, watch, ARRIVAL, steps=3)
    clients = TOY.make_clients(sgd(), shares=strategy.mixer.shares)
    strategy.fit(clients, 1)
    check_equals_whole(strategy, [client.segment.state_dict() for client in clients], watch)


def test_law_5_and_law_6(tmp_path: Path) -> None:
    make_strategy = partial(maker("CutMixSL"), pace=ARRIVAL)
    check_resume_equals_uninterrupted(
        make_strategy, tmp_path, Toy(clients=4, examples=8), num_rounds=2, stop_in=2
    )
    assert check_wire(make_strategy) == []


class Slow(OneAtATime):
    """The client of index 0 waits before each upload, of which it is told the step's number."""

    final_weights: ClassVar[dict[int, Any]] = {}
    waits: ClassVar[Callable[[int], object]]

    def run(self, *arguments: Any) -> dict[str, Any]:
        if self.order.client == 0 and arguments[1].get("plan") is not None:
            # Outside of the turn: the others compute meanwhile.
            type(self).waits(arguments[1]["number"])
        return super().run(*arguments)

    def release(self) -> Any:
        self.final_weights[self.order.client] = self.weights()
        return super().release()


def over_stream(strategy: SplitStrategy, waits: Callable[[int], object]) -> FakeGrid:
    kind = type("Waits", (Slow,), {"waits": staticmethod(waits)})
    grid = FakeGrid(toy_app(TOY, kind, optimizer=sgd(), shares=strategy.mixer.shares), TOY.clients)
    link = StreamLink(address="127.0.0.1:0", attach_timeout=60, step_timeout=60)
    strategy.link = OnFakeGrid(link, grid)
    Slow.final_weights = {}
    strategy.start(None, to_arrays(TOY.lower().state_dict()), 1)  # type: ignore[arg-type]
    grid.wait()
    return grid


@pytest.mark.usefixtures("outside_of_a_run")
@pytest.mark.parametrize("name", ["PSL", "CutMixSL"])
def test_law_1_over_a_stream_with_a_slow_client(name: str) -> None:
    watch = Watch()
    strategy = make(name, watch, ARRIVAL, steps=3)

    def waits(number: int) -> None:
        others = range(1, TOY.clients)
        wait_for("the others' uploads", lambda: all(watch.came[c] > number for c in others))

    over_stream(strategy, waits)
    lasts = [order[-1] for order in watch.orders]
    if name == "PSL":
        assert lasts == [0, 0, 0]
        assert any(order != sorted(order) for order in watch.orders)
    check_equals_whole(strategy, [Slow.final_weights[c] for c in range(TOY.clients)], watch)


@pytest.mark.usefixtures("outside_of_a_run")
def test_a_straggler_is_skipped_and_stays_in_the_round() -> None:
    watch = Watch()
    steps = 12
    strategy = make("PSL", watch, Pace("skip", 3.0), steps=steps)
    strategy.min_nodes = 3

    def waits(number: int) -> None:
        # A server that waits for it takes no step meanwhile: the client fails then.
        ahead = min(number + 3, steps)
        wait_for("steps without it", lambda: len(watch.orders) >= ahead)

    grid = over_stream(strategy, waits)
    (event,) = watch.rounds
    assert event.failures == {}
    assert event.clients_alive == 4
    assert event.late.keys() == {0}
    assert event.row["uploads_late"] == event.late[0] >= 1
    assert event.row["late_by_client"] == f'{{"0": {event.late[0]}}}'
    assert {frozenset(came) for came in watch.uploads} >= {frozenset({1, 2, 3})}
    assert all(came >= {1, 2, 3} for came in watch.uploads)
    assert len(grid.all_replies) == 2 * TOY.clients


@pytest.mark.usefixtures("outside_of_a_run")
def test_nobody_is_late_where_everyone_is_waited_for() -> None:
    watch = Watch()
    strategy = make("PSL", watch, Pace(), steps=2)
    over_stream(strategy, lambda number: time.sleep(0.2))
    assert watch.uploads == [set(range(4))] * 2
    assert watch.rounds[0].late == {}
    assert "late_by_client" not in watch.rounds[0].row
    assert isinstance(strategy, PSL)
