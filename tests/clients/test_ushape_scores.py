"""UShapeClient: scores of whole test sets, and losses of what has a label to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.events import Exchange, RoundDone
from flwr_splitmix.hiding import Hiding, NaiveMix, SentBatch
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.scoring.texts import TextScores
from flwr_splitmix.strategies import NaiveMixSL, USplitFL, USplitSL
from flwr_splitmix.strategies.ushape import UShapeStrategy
from flwr_splitmix.testing.laws import TextToy, sgd
from tests.clients.ushape import ORDER, PATCHES, Masked, attached, decode, encode


def test_scores_are_those_of_the_whole_test_set() -> None:
    toy = TextToy(clients=1, tests=7, task="classification", dropout=0.0)
    client = attached(toy)
    for start, stop in ((0, 4), (4, 7)):
        encoded = client.run("encode_test", {"kind": "federated", "start": start, "stop": stop})
        assert client.run("decode_test", {"outputs": encoded["messages"]}) == {}
    reply = client.run("score", {"kind": "federated"})
    texts = MaskedBatch.of(toy.texts(10_000, 7).batch(range(7)), torch.device("cpu"))  # type: ignore[arg-type]
    logits = client.tail(client.head(texts.inputs, texts.mask), texts.mask)
    assert reply["examples"] == 7
    assert reply["scores"]["accuracy"] == pytest.approx(
        float((logits.argmax(1) == texts.labels).double().mean())
    )
    loss = torch.nn.functional.cross_entropy(logits, texts.labels)
    assert reply["scores"]["loss"] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ([(0, 4), (0, 4)], "test examples 0 to 4; next is 4 of 7"),
        ([(1, 2)], "test examples 1 to 2; next is 0 of 7"),
        ([(0, 4), (5, 7)], "test examples 5 to 7; next is 4 of 7"),
        ([(0, 8)], "test examples 0 to 8; next is 0 of 7"),
        ([(0, 0)], "test examples 0 to 0; next is 0 of 7"),
        ([(0, 4), "score"], "not scored its federated test data, or not all of it"),
        ([(0, 5)], "test examples 0 to 5; this client sends 0 to 4 at once, of 7"),
        ([(0, 1)], "test examples 0 to 1; this client sends 0 to 4 at once, of 7"),
        ([(0, 4), (4, 6)], "test examples 4 to 6; this client sends 4 to 7 at once, of 7"),
        (
            [(0, 4), (4, 7), "score", (0, 4)],
            "all 7 federated test examples were sent in this round",
        ),
        ([(0, 4), (4, 7), "score", "score"], "not scored its federated test data"),
    ],
    ids=str,
)
def test_no_score_is_that_of_a_single_text(requests: Sequence[Any], sentence: str) -> None:
    """A server that may choose the texts reads each one's label off its score."""
    client = attached(TextToy(clients=1, tests=7, task="classification"))

    def ask(request: Any) -> None:
        if request == "score":
            client.run("score", {"kind": "federated"})
            return
        place = {"kind": "federated", "start": request[0], "stop": request[1]}
        reply = client.run("encode_test", place)
        client.run("decode_test", {"outputs": reply["messages"]})

    for request in requests[:-1]:
        ask(request)
    with pytest.raises(ClientError, match=sentence):
        ask(requests[-1])


class Dwindling(TextScores):
    """Scores of a user's own that have a part of each batch sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.again = False

    def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        super().add(logits, batch)
        self.again = not self.again
        few = (each[:1] for each in (batch.inputs, batch.mask, batch.labels))
        return MaskedBatch(*few) if self.again else None


class Seen(Observer):
    """How many test examples clients have sent at once, and how many were scored."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.scored: list[int] = []

    def on_exchange(self, event: Exchange) -> None:
        if (event.method, event.direction) == ("encode_test", "up"):
            self.sizes.append(len(event.payload["mask"]))

    def on_round(self, event: RoundDone) -> None:
        assert event.evaluation is not None
        self.scored.append(event.evaluation.examples)


@pytest.mark.parametrize(("tests", "sizes"), [(4, [4]), (5, [5]), (6, [4, 2]), (9, [4, 5])])
def test_each_test_text_is_mixed_with_another_one(tests: int, sizes: list[int]) -> None:
    """None leaves alone, unmixed: not the last one, nor one that a server asks for by itself."""
    toy = TextToy(clients=2, tests=tests, hiding=NaiveMix, task="classification")
    observer = Seen()
    strategy = NaiveMixSL(
        toy.server(), device="cpu", steps_per_round=1, evaluation="federated", observers=[observer]
    )
    strategy.fit(toy.clients_for(strategy), 2)
    assert observer.sizes == [number for number in sizes for _ in range(2)] * 2
    assert observer.scored == [2 * tests] * 2
    client = attached(replace(toy, clients=1))
    for start in range(tests):
        place = {"kind": "federated", "start": start, "stop": start + 1}
        with pytest.raises(ClientError, match=r"this client sends 0 to|next is 0 of"):
            client.run("encode_test", place)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (1, "test data have 1 example, but NaiveMix works only among several .* or none"),
        (4, "its own scores send 1 example next, but NaiveMix .* must return at least 2"),
    ],
)
def test_no_test_text_is_sent_that_its_hiding_cannot_hide(tests: int, message: str) -> None:
    toy = TextToy(clients=1, tests=tests, hiding=NaiveMix, task="classification")
    client = attached(toy, scores=Dwindling)
    place = {"kind": "federated", "start": 0, "stop": tests}
    with pytest.raises(ClientError, match=message):
        client.run("decode_test", {"outputs": client.run("encode_test", place)["messages"]})


@pytest.mark.parametrize("anew", [False, True], ids=["attached again", "another process"])
def test_no_score_is_that_of_the_texts_since_an_interruption(tmp_path: Path, anew: bool) -> None:
    """If an earlier process's counted as scored, the last one's score would tell its label."""
    toy = TextToy(clients=1, tests=7, task="classification")
    places = [{"kind": "federated", "start": a, "stop": b} for a, b in ((0, 4), (4, 7))]
    (client,) = toy.clients_for()
    client.govern(NodePolicy(), tmp_path, 0, "run")
    client.attach(ORDER, None)
    client.run("encode_test", places[0])
    if anew:
        (client,) = toy.clients_for()
        client.govern(NodePolicy(), tmp_path, 0, "run")
    client.attach(ORDER, None)
    reply = client.run("encode_test", places[1])
    client.run("decode_test", {"outputs": reply["messages"]})
    with pytest.raises(ClientError, match="not scored its federated test data, or not all of it"):
        client.run("score", {"kind": "federated"})


def test_a_batch_whose_answer_is_waited_for_is_not_followed_by_another() -> None:
    client = attached(TextToy(clients=1, tests=7, task="classification"))
    client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ClientError, match="test examples 4 to 7"):
        client.run("encode_test", {"kind": "federated", "start": 4, "stop": 7})


UNLABELLED = [-100] * 4


@pytest.mark.parametrize("labels", [[UNLABELLED] * 2, [[1, -100, -100, -100]] * 2])
def test_a_client_without_a_label_to_predict_is_refused(labels: list[list[int]]) -> None:
    toy = TextToy(clients=1)
    with pytest.raises(ClientError, match="none of 2 training texts has a label to predict"):
        UShapeClient(toy.head(), toy.tail(), TextSet([[1, 2, 3, 4]] * 2, labels), device="cpu")


def test_batches_without_a_label_do_not_count_in_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = TextToy(clients=1, dropout=0.0)
    text = [1, 2, 3, 4]
    losses = []
    for labels in ([text, UNLABELLED], [text, text]):
        texts = TextSet([text] * 2, labels)
        options: dict[str, Any] = {"optimizer": sgd(0.0), "device": "cpu"}
        client = UShapeClient(toy.head(), toy.tail(), texts, batch_size=1, **options)
        strategy = USplitSL(toy.server(), **options)
        strategy.fit([client], 1)
        losses.append(strategy.rows[0]["loss"])
    assert losses[0] == pytest.approx(losses[1])
    warnings = [r.getMessage() for r in caplog.records if "no label" in r.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("1 of 2 training texts has no label to predict (-100 marks")


class Tagging(UShapeClient):
    """Scores a label at its own place."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return cross_entropy(self.tail(hidden, sent.mask).mT, sent.batch.labels)


def tagging(kind: type[UShapeClient], head: nn.Module, inputs: Tensor) -> Any:
    """Return a client with a label for each place, 0 or 1, and the same as test data."""
    tags = torch.randint(2, (8, 6), generator=torch.Generator().manual_seed(0))
    data: Any = TensorDataset(inputs, tags)
    tail = Masked(nn.Linear(3, 2))
    return kind(Masked(head), tail, data, batch_size=4, test_data=data, device="cpu")


TOKENS = nn.Embedding(9, 3), torch.randint(2, 9, (8, 6))


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            PATCHES,
            r"labels have shape .* labels of patches, need a loss of your own, .* \(scores=\)",
        ),
        (TOKENS, r"labels are not the tokens: .*\(token classification\) is not off.* \(scores=\)"),
    ],
)
def test_labels_of_patches_or_of_single_tokens_are_refused(of: Any, message: str) -> None:
    """Scored as the next place's, they would teach the model nothing."""
    client = tagging(UShapeClient, *of)
    client.attach(ORDER, None)
    with pytest.raises(ExamplesError, match=message):
        decode(client, encode(client))
    client = tagging(Tagging, *of)  # it learns by a loss of its own, but has not its own scores
    client.attach(ORDER, None)
    encode(client, 1, gradient=decode(client, encode(client))["gradients"])
    assert client.steps == 1
    reply = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ExamplesError, match=message):
        client.run("decode_test", {"outputs": reply["messages"]})


@pytest.mark.parametrize("kind", [USplitSL, USplitFL])
@pytest.mark.parametrize("labelled", [0, 1])
def test_a_round_without_a_label_has_no_loss(
    kind: type[UShapeStrategy], labelled: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss of 0 would count in the mean over clients."""
    toy = TextToy(clients=1, dropout=0.0)
    text = [1, 2, 3, 4]
    options: dict[str, Any] = {"optimizer": sgd(0.0), "device": "cpu"}
    clients = [
        UShapeClient(toy.head(), toy.tail(), TextSet(texts, labels), batch_size=1, **options)
        for texts, labels in (
            *[([text] * 100, [UNLABELLED] * 99 + [text])] * (2 - labelled),
            *[([text], [text])] * labelled,
        )
    ]
    strategy = kind(toy.server(), steps_per_round=1, **options)
    result = strategy.fit(clients, 1)
    (row,) = strategy.rows
    assert row["clients_failed"] == 0
    assert ("train-loss" in result.train_metrics_clientapp[1]) == bool(labelled)
    assert (row["loss"] is None) == (not labelled)
    messages = [r.getMessage() for r in caplog.records if "round 1" in r.getMessage()]
    assert messages[: 2 - labelled] == [
        f"client {index}: no example of round 1 had a label to predict, so it has no loss"
        for index in range(2 - labelled)
    ]


@pytest.mark.parametrize(
    ("learns", "accounts", "has_loss"),
    [("all", False, True), ("all", True, True), ("tail", False, True), ("tail", True, False)],
)
def test_only_a_tail_that_learns_alone_under_an_epsilon_has_no_loss(
    learns: str, accounts: bool, has_loss: bool
) -> None:
    hiding = Hiding()
    hiding.accounts = accounts  # type: ignore[misc]
    client = attached(TextToy(clients=1, hiding=lambda: hiding), learns=learns)
    decode(client, encode(client))
    assert ("train-loss" in client.release()[1]) is has_loss
