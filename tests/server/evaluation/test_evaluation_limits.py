"""The only client with test data says that it has two thousand million of them.

Believed, that is 8.6 million exchanges in the L shape, and as many as the client likes in the
U shape: an evaluation without end, while the others wait.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from flwr_splitmix.clients import SplitClient, UShapeClient
from flwr_splitmix.description import read_description
from flwr_splitmix.events import Exchange, RoundDone
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.server.evaluation import over_link, time_limit
from flwr_splitmix.server.evaluation.over_link import MAX_TESTS, Kind, sizes_of_tests
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy

MANY = 2**31 - 1
LIAR = 1
TOY = Toy(clients=3, batch=4)
TEXTS = TextToy(clients=3, tests=4)


class Endless(SplitClient):
    """Answers for any number of test images."""

    pause = 0.0

    def attach(self, *arguments: Any) -> dict[str, Any]:
        return {**super().attach(*arguments), "federated-examples": MANY}

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        if method != "encode_test":
            return super().run(method, arguments)
        time.sleep(self.pause)
        size = arguments["stop"] - arguments["start"]
        smashed = torch.zeros(size, TOY.patches, TOY.width, dtype=torch.float64)
        return {"smashed": [smashed], "labels": torch.zeros(size, dtype=torch.int64)}


class EndlessTexts(UShapeClient):
    """Answers for as many test texts as are asked of one client; the others have none."""

    pause = 0.0

    def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
        size = over_link.MAX_TESTS if order.client == LIAR else 0
        return {**super().attach(order, arrays), "federated-examples": size}

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        if method == "encode_test":
            time.sleep(self.pause)
            texts = arguments["stop"] - arguments["start"]
            hidden = torch.zeros(texts, 2, TEXTS.width, dtype=torch.float64)
            return {"messages": [hidden], "mask": torch.ones(texts, 2, dtype=torch.uint8)}
        if method == "decode_test":
            return {}
        if method == "score":
            return {"examples": MANY, "scores": {"accuracy": 1.0, "loss": 0.0}}
        return super().run(method, arguments)


class Seen(Observer):
    def __init__(self) -> None:
        self.batches = 0
        self.rounds: list[RoundDone] = []

    def on_exchange(self, event: Exchange) -> None:
        self.batches += event.method == "encode_test" and event.direction == "down"

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)


def run_images(pause: float = 0.0) -> Seen:
    observer = Seen()
    clients = list(TOY.make_clients(sgd(0.1)))
    kind = type("Slow", (Endless,), {"pause": pause})
    clients[LIAR] = TOY.make_clients(sgd(0.1), kind=kind)[LIAR]
    strategy = PSL(
        TOY.upper(), device="cpu", evaluation="federated", steps_per_round=1, observers=[observer]
    )
    strategy.fit(clients, 2)
    return observer


def run_texts(pause: float = 0.0) -> Seen:
    observer = Seen()
    kind = type("SlowTexts", (EndlessTexts,), {"pause": pause})
    toy = TextToy(clients=TEXTS.clients, tests=TEXTS.tests, kind=kind)
    strategy = USplitSL(
        toy.server(), device="cpu", evaluation="federated", steps_per_round=1, observers=[observer]
    )
    strategy.fit(toy.clients_for(strategy), 2)
    return observer


class Says(Clients):
    """Clients of which each says the size of one of its test sets; None says nothing of them."""

    def __init__(self, *sizes: int | None, kind: Kind = "federated") -> None:
        descriptions = ({"num-examples": 8, f"{kind}-examples": size} for size in sizes)
        super().__init__(1, dict(enumerate(map(read_description, descriptions))), {}, None)

    def _exchange(self, method: str, payloads: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize("claim", [MAX_TESTS + 1, MANY])
def test_no_client_is_asked_for_more_than_a_million(
    claim: int, caplog: pytest.LogCaptureFixture
) -> None:
    clients = Says(claim, None)
    assert sizes_of_tests(clients, "federated") == {0: 1_000_000}
    assert clients.failures == {}
    assert f"{claim} test examples are more than the 1,000,000" in caplog.text
    assert "than the others" not in caplog.text


def test_what_is_left_out_of_a_large_test_set_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Of the 1,000 examples of one client, the accuracy may be that of the first 200."""
    assert sizes_of_tests(Says(2, 2, 1000), "federated") == {0: 2, 1: 2, 2: 200}
    assert (
        "client 2 is evaluated on 200 examples: far more test data than the others" in caplog.text
    )


def test_a_client_of_the_u_shape_is_evaluated_on_all_of_its_texts_or_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All are scored at once, so it would refuse to score 400 of them."""
    toy, observer = TextToy(clients=3, tests=4), Seen()
    strategy = USplitSL(
        toy.server(), device="cpu", evaluation="federated", steps_per_round=1, observers=[observer]
    )
    clients = toy.clients_for(strategy)
    clients[1].tests["federated"] = toy.texts(30_000, 401)
    strategy.fit(clients, 1)
    evaluation = observer.rounds[-1].evaluation
    assert evaluation is not None
    assert evaluation.examples == 8
    assert (
        "client 1 is not evaluated: far more test data than the others have, up to 401,"
        in caplog.text
    )
    assert "continued without" not in caplog.text


def test_more_texts_than_are_asked_of_one_client_are_not_evaluated_in_part() -> None:
    clients = Says(MAX_TESTS + 1, None)
    assert sizes_of_tests(clients, "federated", in_parts=False) == {}


@pytest.mark.parametrize(("kind", "warned"), [("benchmark", True), ("federated", False)])
def test_common_test_sets_of_different_sizes_are_no_common_set(
    kind: Kind, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert sizes_of_tests(Says(20, 30, kind=kind), kind) == {0: 20, 1: 30}
    assert ("benchmark test sets of 20 to 30 examples" in caplog.text) is warned


def test_who_is_through_its_tests_when_the_time_is_up_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = Says(*[None] * 4)
    sizes = {0: 3, 1: 9, 2: 3, 3: 3}
    limit = time_limit.TimeLimit()
    groups = []
    for payloads in over_link.batches_of_tests(
        clients, limit, "federated", sizes, dict.fromkeys(sizes, 5), at_once=2
    ):
        groups.append(sorted(payloads))
        monkeypatch.setattr(time_limit.TimeLimit, "over", True)
    assert groups == [[0, 1]]
    assert clients.alive == (0,)  # client 1 has a second batch, and the others have no first one


@pytest.mark.parametrize(("run", "batch"), [(run_images, 250), (run_texts, TEXTS.batch)])
def test_an_evaluation_ends(run: Any, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_link, "MAX_TESTS", 4 * batch)
    observer = run()
    assert observer.batches == 2 * 4  # two rounds
    assert all(event.evaluation is not None for event in observer.rounds)


@pytest.mark.parametrize("run", [run_images, run_texts])
def test_an_evaluation_has_a_deadline(
    run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time_limit, "MAX_SECONDS", 0.4)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        observer = run(0.1)
    assert 2 <= observer.batches <= 20
    assert [event.evaluation for event in observer.rounds] == [None, None]
    assert [event.clients_alive for event in observer.rounds] == [3, 3]
    assert f"client {LIAR}: was not through its tests within 0.4 s" in caplog.text
