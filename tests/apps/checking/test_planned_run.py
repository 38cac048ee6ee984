"""Rounds that are planned are those that a run then has, and no draw asks for more than planned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.apps.checking.planned_run import PlannedRun
from flwr_splitmix.clients import NO_DATA, ClientError, Order, SplitClient
from flwr_splitmix.events import Exchange, RoundBegun
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy, sgd

SIZES = (40, 0, 9, 64, 3, 0, 17, 25)


def planned(sizes: Sequence[int] = SIZES, **values: Any) -> PlannedRun:
    usual = {
        "batch_size": 4, "rounds": 6, "steps_per_round": 0, "epochs_per_round": 1, "min_nodes": 2,
        "fraction": 0.4, "seed": 0, "evaluate_every": 2,
    }  # fmt: skip
    return PlannedRun(sizes=sizes, **{**usual, **values})


class WithoutAny(SplitClient):
    """A client that has no data after all."""

    def attach(self, order: Order, arrays: Any) -> dict[str, Any]:
        raise ClientError(NO_DATA)


class Asked(Observer):
    """Counts the batches that each client is asked for, and who begins each round."""

    def __init__(self, clients: int) -> None:
        self.steps = np.zeros(clients, dtype=np.int64)
        self.evaluations = np.zeros(clients, dtype=np.int64)
        self.together: set[int] = set()

    def on_begin(self, event: RoundBegun) -> None:
        self.together.add(len(event.descriptions))

    def on_exchange(self, event: Exchange) -> None:
        if event.direction == "down" and event.payload.get("plan") is not None:
            self.steps[event.client] += 1
        if event.direction == "down" and event.payload.get("start") == 0:
            self.evaluations[event.client] += 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.2, 0.6, 1.0])
def test_a_run_asks_for_what_is_planned(seed: int, fraction: float) -> None:
    """Rounds with too few clients with data are drawn again, here, too."""
    toy, observer = Toy(clients=len(SIZES), batch_norm=False), Asked(len(SIZES))
    clients = []
    for index, size in enumerate(SIZES):
        image, label = toy.data(index)[0]
        data: Any = [(image, int(label))] * max(size, 1)
        kind = SplitClient if size else WithoutAny
        clients.append(kind(toy.lower(), data, batch_size=4, test_data=data, optimizer=sgd(0.1)))
    strategy = PSL(
        toy.upper(), optimizer=sgd(0.1), device="cpu", seed=seed, fraction_train=fraction,
        min_nodes=2, evaluation="federated", evaluate_every=2, observers=[observer],
    )  # fmt: skip
    strategy.fit(clients, 5)
    run = planned(seed=seed, fraction=fraction, rounds=5)
    work = run.drawn or run.at_most
    assert (run.drawn is None) == (fraction == 1)
    assert work.steps.tolist() == observer.steps.tolist()
    assert set(work.together) == observer.together
    having = np.array(SIZES) > 0
    assert work.evaluations[having].tolist() == observer.evaluations[having].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_no_draws_ask_for_more_than_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 5, 20, 30, 50, 400], size=8).tolist()
    sizes[:4] = [7, 12, 90, 33]
    run = planned(sizes, seed=seed, fraction=rng.choice([0.3, 0.5, 0.7]), rounds=4)
    assert run.drawn is not None
    assert (run.drawn.steps <= run.at_most.steps).all()
    assert set(run.drawn.together) <= set(run.at_most.together)
    batches = [size // 4 for size in sizes]
    having = [client for client, size in enumerate(sizes) if size]
    for client in having:
        others = [other for other in having if other != client]
        most = max(
            max(1, round((batches[client] + sum(batches[other] for other in some)) / n))
            for n in run.at_most.together
            for some in combinations(others, n - 1)
        )
        assert run.at_most.steps[client] == 4 * most


def test_the_round_is_that_in_which_a_limit_is_passed() -> None:
    limits = np.full(len(SIZES), 12.0)
    for run in (planned(), planned(steps_per_round=5), planned(fraction=1.0)):
        first = run.first_round_above(limits)
        assert first is not None
        for rounds, above in ((first - 1, False), (first, True)):
            shorter = planned(**{**vars_of(run), "rounds": rounds})
            if rounds:
                work = shorter.drawn or shorter.at_most
                assert (work.steps > limits).any() == above
    assert planned().first_round_above(np.full(len(SIZES), 1e9)) is None
    assert planned(fraction=1.0).first_round_above(np.full(len(SIZES), 1e9)) is None


def vars_of(run: PlannedRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("fraction", "steps_per_round")}


def test_a_run_of_very_many_rounds_is_bounded_only() -> None:
    run = planned(rounds=2**31 - 1)
    assert run.drawn is None
    assert run.at_most.steps.max() == (2**31 - 1) * (16 + 10) // 2


def test_one_client_stands_for_all_whose_number_is_not_known() -> None:
    run = planned([40], fraction=0.5)
    assert run.drawn is None
    assert run.at_most.steps.tolist() == [60]
    assert run.at_most.evaluations.tolist() == [3]
