"""ReportedEpsilons: the largest of any client that took part in the run."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix.clients import ClientError, UShapeClient, exchange
from flwr_splitmix.events import Exchange
from flwr_splitmix.hiding import DPForward, Hiding, SentBatch
from flwr_splitmix.links import Clients
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.unfinished import UnfinishedRounds
from flwr_splitmix.runs import Run
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.server.intake.epsilons import ReportedEpsilons
from flwr_splitmix.strategies import DPForwardSL, USplitFL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.server.replies import reply_of

TOY = TextToy(clients=2)


class Rows(Observer):
    def __init__(self) -> None:
        self.epsilons: list[float | None] = []

    def on_round(self, event: Any) -> None:
        self.epsilons.append(event.row.get("train_epsilon"))


class Failing(UShapeClient):
    """Fails in its fourth loss, when its messages have left."""

    losses = 0

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        self.losses += 1
        if self.losses == 4:
            raise ClientError("no battery")
        return super().loss(hidden, sent)


def client(
    kind: type[UShapeClient] = UShapeClient, texts: int = 16, hiding: Hiding | None = None
) -> UShapeClient:
    client_hiding = DPForward(epsilon=8.0, clip_norm=2.0, releases=8) if hiding is None else hiding
    data = TOY.texts(100 * texts, texts)
    return kind(TOY.head(), TOY.tail(), data, device="cpu", batch_size=2, hiding=client_hiding)


def spent(one: UShapeClient) -> float:
    assert one.epsilon is not None
    return one.epsilon


def answered(nodes: list[int], epsilons: list[float]) -> Any:
    """Return a round's clients with their replies."""
    replies = [reply_of({}, {"num-examples": 1, "epsilon": epsilon}) for epsilon in epsilons]
    return SimpleNamespace(alive=nodes, replies=dict(zip(nodes, replies, strict=True)))


def test_a_client_that_fails_has_no_bound_until_it_reports_again() -> None:
    observer = Rows()
    clients = [client(), client(Failing, texts=4)]
    DPForwardSL(TOY.server(), device="cpu", steps_per_round=2, observers=[observer]).fit(clients, 3)
    assert observer.epsilons[1] == math.inf
    assert observer.epsilons[2] == spent(clients[1]) > spent(clients[0])


def test_a_client_that_is_not_drawn_keeps_what_it_has_spent() -> None:
    observer = Rows()
    clients = [client(texts=4), client(texts=40)]
    strategy = DPForwardSL(
        TOY.server(),
        device="cpu",
        steps_per_round=2,
        fraction_train=0.5,
        observers=[observer],
        seed=0,
    )
    strategy.fit(clients, 6)
    assert set(strategy.last_trained_round) == {0, 1}
    rows = [epsilon for epsilon in observer.epsilons if epsilon is not None]
    assert rows == sorted(rows)
    assert rows[-1] == max(map(spent, clients))


def test_a_client_without_an_epsilon_has_no_bound() -> None:
    observer = Rows()
    clients = [client(), client(), client(hiding=Hiding())]
    USplitSL(TOY.server(), device="cpu", steps_per_round=1, observers=[observer]).fit(clients, 1)
    assert observer.epsilons == [math.inf]


def test_another_fit_begins_anew() -> None:
    observer = Rows()
    strategy = DPForwardSL(TOY.server(), device="cpu", steps_per_round=2, observers=[observer])
    strategy.fit([client(texts=4), client(texts=4)], 2)
    alone = client(texts=40)
    strategy.fit([alone], 1)
    *_, before, last = observer.epsilons
    assert before is not None
    assert last == spent(alone) < before


def test_where_weights_are_averaged_epsilons_are_not() -> None:
    observer = Rows()
    clients = [client(texts=4), client(texts=16)]
    strategy = USplitFL(TOY.server(), device="cpu", steps_per_round=2, observers=[observer])
    result = strategy.fit(clients, 2)
    assert dict(result.train_metrics_clientapp[2])["epsilon"] == observer.epsilons[1]
    assert observer.epsilons[1] == max(map(spent, clients))


def test_lost_beginnings_are_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the ledger is that misses them, not only one of uploads."""
    run = Run.create({}, name="x", home=tmp_path)
    for rounds in (1, 2):
        again = Run.open(run.id, home=tmp_path)
        strategy = DPForwardSL(TOY.server(), device="cpu", steps_per_round=1, run=again)
        strategy.fit([client(), client()], rounds)
        (run.path / "begun.jsonl").unlink()
    assert f"{run.path / 'begun.jsonl'} has lost lines; without them epsilon lacks" in caplog.text


def test_what_was_spent_outlives_an_interruption(tmp_path: Path) -> None:
    ended = []
    for rounds in ([4], [2, 4]):
        run = Run.create({}, name=str(len(rounds)), home=tmp_path)
        for number in rounds:
            observer = Rows()
            strategy = DPForwardSL(
                TOY.server(), device="cpu", steps_per_round=2, fraction_train=0.5, seed=0,
                observers=[observer], run=run,
            )  # fmt: skip
            strategy.fit([client(texts=4), client(texts=40)], number)
        ended.append(observer.epsilons[-1])
    assert ended[0] == ended[1]


def test_a_round_that_is_lost_has_cost_its_clients_what_they_do_not_say() -> None:
    """Seed 2 draws clients 0, 1, 0, 0, 0, 1: client 1 answers for the second in the last."""

    class Losing(DPForwardSL):
        def train_round(self, clients: Clients, server_round: int) -> int:
            steps = super().train_round(clients, server_round)
            if server_round == 2:
                raise RoundLostError("the mixer is gone")
            return steps

    observer, clients = Rows(), [client(texts=4), client(texts=4)]
    Losing(
        TOY.server(),
        device="cpu",
        steps_per_round=2,
        fraction_train=0.5,
        seed=2,
        observers=[observer],
    ).fit(clients, 6)
    assert observer.epsilons[1:4] == [math.inf] * 3
    assert observer.epsilons[4] == max(map(spent, clients))


class Evaluating(DPForwardSL):
    """Evaluates after each round, by answers of up to four tokens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, evaluation="federated", evaluate_every=1, **options)


def with_tests(kind: type[UShapeClient] = UShapeClient) -> UShapeClient:
    return kind(
        TOY.head(),
        TOY.tail(),
        TOY.texts(5, 8),
        test_data=TOY.texts(7, 4),
        device="cpu",
        batch_size=2,
        hiding=DPForward(epsilon=8.0, clip_norm=2.0, releases=8),
        scores=lambda: GenerationScores(decode=str, end=1, max_new_tokens=4, max_length=32),
    )


def test_the_last_evaluation_is_in_the_epsilon_of_its_round() -> None:
    observer, clients = Rows(), [with_tests(), with_tests()]
    strategy = Evaluating(TOY.server(), device="cpu", steps_per_round=1, observers=[observer])
    result = strategy.fit(clients, 2)
    assert observer.epsilons[1] == max(map(spent, clients))
    assert dict(result.train_metrics_clientapp[2])["epsilon"] == observer.epsilons[1]
    # Each test text is sent once for each of its tokens, in each of two evaluations.
    alone = with_tests()
    DPForwardSL(TOY.server(), device="cpu", steps_per_round=1).fit([alone], 2)
    assert spent(clients[0]) > spent(alone)


def test_who_sends_test_texts_and_no_scores_has_no_bound_until_it_reports() -> None:
    class Silent(UShapeClient):
        rounds = 0

        @exchange
        def score(self, *, kind: str) -> dict[str, Any]:
            self.rounds += 1
            if self.rounds == 1:
                raise ClientError("no battery")
            return super().score(kind=kind)

    observer, clients = Rows(), [with_tests(), with_tests(Silent)]
    Evaluating(TOY.server(), device="cpu", steps_per_round=1, observers=[observer]).fit(clients, 2)
    assert observer.epsilons == [math.inf, max(map(spent, clients))]


@pytest.mark.parametrize(
    "claim",
    [
        None, "8", {"epsilon": "8"}, {"epsilon": math.nan}, {"epsilon": 10**400}, {3: 1.0},
        {"epsilon": True}, {f"epsilon-{'x' * 100}{number}": 1.0 for number in range(1000)},
    ],
    ids=["none", "text", "a text", "nan", "huge", "no name", "truth", "many"],
)  # fmt: skip
def test_nonsense_of_a_client_is_no_bound(claim: Any) -> None:
    epsilons = ReportedEpsilons(UnfinishedRounds())
    epsilons.take(answered([0], [2.0]), ["epsilon"])
    payloads: list[dict[str, Any]] = [{"messages": []}, {"scores": {}, "epsilons": claim}]
    for payload in payloads:
        epsilons.on_exchange(Exchange(1, 0, "any", "up", payload, 0, "evaluate"))
    assert epsilons.largest() == {"epsilon": math.inf}
    assert len(str(epsilons.state())) < 200


def test_a_state_is_restored() -> None:
    unfinished = UnfinishedRounds()
    first, second = ReportedEpsilons(unfinished), ReportedEpsilons(unfinished)
    assert first.largest() == {}
    first.take(answered([0, 1], [2.0, 3.0]), ["epsilon"])
    assert first.largest() == {"epsilon": 3.0}
    second.restore(first.state())
    second.take(answered([0], [1.0]), [])
    assert second.largest() == {"epsilon": 3.0}
    first.on_exchange(Exchange(1, 0, "any", "up", {"messages": []}, 0, "evaluate"))
    second.restore(first.state())
    assert second.largest() == {"epsilon": math.inf}
    first.forget()
    assert first.largest() == {}
