"""Calibrations: one client does not keep the others waiting, neither in a round nor in a run."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
import torch

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.links import Clients
from flwr_splitmix.server.evaluation import time_limit
from flwr_splitmix.server.steps.calibrations import Calibrations
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.strategies.test_ushape import Seen


class Asked:
    """The clients of a round, as far as it matters who leaves it."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}

    def fail(self, client: int, reason: str) -> None:
        self.failures[client] = reason


def due(
    calibrations: Calibrations, claims: dict[int, int]
) -> tuple[dict[int, int], dict[int, str]]:
    clients = Asked()
    return calibrations.due(cast(Clients, clients), claims), clients.failures


def test_who_claims_calibration_alone_is_compared_with_what_all_have_said() -> None:
    """Honest clients report 0 from the second round on; a liar is not compared with itself."""
    calibrations = Calibrations()
    assert due(calibrations, {0: 3, 1: 4}) == ({0: 3, 1: 4}, {})
    steps, failures = due(calibrations, {0: 0, 1: 0, 2: 100_000})
    assert steps == {}
    assert failures.keys() == {2}
    assert failures[2].startswith(
        "needs 100000 more steps of calibration, and in a run a client gets at most 400, 100 times"
    )


def test_calibration_is_limited_in_the_whole_run() -> None:
    calibrations = Calibrations()
    assert due(calibrations, {0: 3, 1: 4, 2: 350})[0] == {0: 3, 1: 4, 2: 350}
    for _ in range(350):
        calibrations.count(2)
    resumed = Calibrations()
    resumed.restore(calibrations.state())
    assert due(resumed, {0: 0, 1: 0, 2: 50}) == ({2: 50}, {})
    resumed.count(2)
    steps, failures = due(resumed, {0: 0, 1: 0, 2: 50})
    assert steps == {}
    assert failures.keys() == {2}


def test_a_newcomer_calibrates_as_the_others_did() -> None:
    calibrations = Calibrations()
    assert calibrations.usual == 0
    assert due(calibrations, {0: 30, 1: 30})[0] == {0: 30, 1: 30}
    assert due(calibrations, {0: 0, 1: 0, 2: 250})[0] == {2: 250}
    assert calibrations.usual == 30


class Endless(UShapeClient):
    """Client 2 says from the second round on that it has many steps of calibration to do."""

    def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
        facts = super().attach(order, arrays)
        first = {} if order.client == 2 else {"calibration-steps": 2}
        return {**facts, **first} if order.server_round == 1 else {**facts, **self.later(order)}

    @staticmethod
    def later(order: Any) -> dict[str, Any]:
        return {"calibration-steps": 150} if order.client == 2 else {}

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        if method == "encode_public":
            mask = torch.ones(1, 1, dtype=torch.uint8)
            hidden = torch.zeros(1, 1, 5, dtype=torch.float64)
            return {"public": [{"messages": [hidden], "mask": mask}]}
        return {} if method == "decode_public" else super().run(method, arguments)


def trained(rounds: int) -> tuple[list[int], list[dict[int, str]]]:
    """Return calibration requests, and failures, by round."""
    requests: Counter[int] = Counter()

    class Counting(Seen):
        def on_exchange(self, event: Any) -> None:
            if event.method == "encode_public" and event.direction == "down":
                requests[len(self.rounds)] += 1

    observer = Counting()
    toy = TextToy(kind=Endless)
    strategy = USplitSL(toy.server(), device="cpu", observers=[observer], steps_per_round=1)
    strategy.fit(toy.clients_for(strategy), rounds)
    return [requests[i] for i in sorted(requests)], [
        dict(each.failures) for each in observer.rounds
    ]


def test_a_claim_of_a_later_round_costs_the_others_little() -> None:
    requests, failures = trained(3)
    assert requests == [4, 150]  # of at most 200 in the run
    assert failures[:2] == [{}, {}]
    assert failures[2].keys() == {2}


def test_most_clients_wait_an_hour_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "MAX_SECONDS", -1.0)
    requests, failures = trained(2)
    assert requests == [4, 2]
    assert failures == [{}, {2: "was not through its calibration within -1 s"}]
