"""UShapeClient: scores of whole test sets, and losses of what has a label to predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, Sent
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.scoring.texts import ClassScores
from flwr_splitmix.strategies import USplitFL, USplitSL
from flwr_splitmix.strategies.ushape import UShapeStrategy
from flwr_splitmix.testing.laws import TextToy, sgd
from tests.clients.ushape import ORDER, attached, decode, encode


def test_scores_are_those_of_the_whole_test_set() -> None:
    toy = TextToy(clients=1, tests=7, task="classification", dropout=0.0)
    client = attached(toy)
    for start, stop in ((0, 4), (4, 7)):
        sent = client.run("encode_test", {"kind": "federated", "start": start, "stop": stop})
        assert client.run("decode_test", {"outputs": sent["messages"]}) == {}
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
    ("asked", "sentence"),
    [
        ([(0, 4), (0, 4)], "test examples 0 to 4; next is 4 of 7"),
        ([(1, 2)], "test examples 1 to 2; next is 0 of 7"),
        ([(0, 4), (5, 7)], "test examples 5 to 7; next is 4 of 7"),
        ([(0, 8)], "test examples 0 to 8; next is 0 of 7"),
        ([(0, 0)], "test examples 0 to 0; next is 0 of 7"),
        ([(0, 4), "score"], "not scored its federated test data, or not all of it"),
        ([(0, 5)], "asks for 5 test examples at once; this client sends at most 4, its batch size"),
        ([(0, 4), (4, 7), "score", (0, 4)], "all 7 federated test examples were sent under this"),
        ([(0, 4), (4, 7), "score", "score"], "not scored its federated test data"),
    ],
    ids=str,
)
def test_no_score_is_that_of_a_single_text(asked: Sequence[Any], sentence: str) -> None:
    """A server that may choose the texts reads each one's label off its score."""
    client = attached(TextToy(clients=1, tests=7, task="classification"))

    def ask(what: Any) -> None:
        if what == "score":
            client.run("score", {"kind": "federated"})
            return
        place = {"kind": "federated", "start": what[0], "stop": what[1]}
        sent = client.run("encode_test", place)
        client.run("decode_test", {"outputs": sent["messages"]})

    for what in asked[:-1]:
        ask(what)
    with pytest.raises(ClientError, match=sentence):
        ask(asked[-1])


@pytest.mark.parametrize("anew", [False, True], ids=["attached again", "another process"])
def test_no_score_is_that_of_the_texts_since_an_interruption(tmp_path: Path, anew: bool) -> None:
    """The texts of an earlier process counted as scored: the last one's score told its label."""
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
    sent = client.run("encode_test", places[1])
    client.run("decode_test", {"outputs": sent["messages"]})
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
    told = [r.getMessage() for r in caplog.records if "no label" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("1 of 2 training texts has no label to predict (-100 marks")


class Masked(nn.Module):
    """A head or a tail that takes a mask, too."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        return hidden


class Tagging(UShapeClient):
    """Scores a label at its own place."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        return cross_entropy(self.tail(hidden, sent.mask).mT, sent.batch.labels)


def tagging(kind: type[UShapeClient], head: nn.Module, inputs: Tensor) -> Any:
    """Return a client with a label for each place, 0 or 1, and the same as test data."""
    tags = torch.randint(2, (8, 6), generator=torch.Generator().manual_seed(0))
    data: Any = TensorDataset(inputs, tags)
    tail = Masked(nn.Linear(3, 2))
    return kind(Masked(head), tail, data, batch_size=4, test_data=data, device="cpu")


PATCHES = nn.Linear(4, 3), torch.randn(8, 6, 4)
TOKENS = nn.Embedding(9, 3), torch.randint(2, 9, (8, 6))


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            PATCHES,
            r"labels have shape .* of patches or pixels, are not offered.* of your own \(scores=\)",
        ),
        (TOKENS, r"labels are not the tokens: .*\(token classification\) is not off.* \(scores=\)"),
    ],
)
def test_labels_of_patches_or_of_single_tokens_are_refused(of: Any, said: str) -> None:
    """They were scored as the next place's, so that the model learned nothing, without a word."""
    client = tagging(UShapeClient, *of)
    client.attach(ORDER, None)
    with pytest.raises(ExamplesError, match=said):
        decode(client, encode(client))
    client = tagging(Tagging, *of)  # it learns by a loss of its own, but has not its own scores
    client.attach(ORDER, None)
    encode(client, 1, gradient=decode(client, encode(client))["gradients"])
    assert client.steps == 1
    sent = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ExamplesError, match=said):
        client.run("decode_test", {"outputs": sent["messages"]})


class Regressing(UShapeClient):
    """Learns numbers."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        said = self.tail(hidden, sent.mask).mean((1, 2))
        return mse_loss(said, sent.batch.labels.to(said.dtype))


class MeanError:
    """The mean error of numbers."""

    def __init__(self) -> None:
        self.examples, self.error = 0, 0.0

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        return batch

    def add(self, logits: Tensor, batch: MaskedBatch) -> None:
        assert batch.labels.is_floating_point()
        self.examples += len(batch.labels)
        self.error += float((logits.mean((1, 2)) - batch.labels).square().sum())

    def result(self) -> dict[str, float]:
        return {"loss": self.error / self.examples, "accuracy": 0.0}


def numbers(kind: type[UShapeClient], scores: Any = None, *, listed: bool = False) -> UShapeClient:
    """Return a client with a floating label for each example, and the same as test data."""
    head, inputs = PATCHES
    labels = inputs.mean((1, 2))
    data: Any = TensorDataset(inputs, labels)
    if listed:
        data = [(each, float(label)) for each, label in zip(inputs, labels, strict=True)]
    tail = Masked(nn.Linear(3, 2))
    options: dict[str, Any] = {"batch_size": 4, "test_data": data, "device": "cpu"}
    return kind(Masked(head), tail, data, scores=scores, **options)


@pytest.mark.parametrize("listed", [False, True])
def test_a_loss_of_ones_own_may_have_floating_labels(listed: bool) -> None:
    """They were refused for any client, with advice that the U shape refuses, too."""
    strategy = USplitSL(Masked(nn.Linear(3, 3)), device="cpu", evaluation="federated")
    strategy.fit([numbers(Regressing, MeanError, listed=listed)], 2)
    assert 0 < strategy.rows[-1]["eval_loss"] < 10
    said = r"labels are torch\.float.*; needed are classes, int64 \(batch,\); .*scores of your own"
    with pytest.raises(ExamplesError, match=said):
        numbers(UShapeClient, listed=listed).attach(ORDER, None)
    client = numbers(Regressing, listed=listed)  # has not its own scores
    client.attach(ORDER, None)
    sent = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ExamplesError, match=said):
        client.run("decode_test", {"outputs": sent["messages"]})


class Short:
    """Scores that do not say how many examples they have scored."""

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        return batch

    def result(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (MeanError(), "scores is a MeanError; needed is what makes .* the class: scores=MeanError"),
        (Short, r"makes a Short, which lacks examples \(a number, of those scored\), add; "),
        (lambda: None, "scores makes a NoneType, which lacks examples .*, begin, add, result"),
    ],
)
def test_what_makes_no_scores_is_refused_at_once(scores: Any, said: str) -> None:
    """It failed at the first evaluation, after a round of training."""
    with pytest.raises(TypeError, match=said):
        numbers(Regressing, scores)


@pytest.mark.parametrize("kind", [USplitSL, USplitFL])
@pytest.mark.parametrize("labelled", [0, 1])
def test_a_round_without_a_label_has_no_loss(
    kind: type[UShapeStrategy], labelled: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It had a loss of 0, which the mean over clients took in."""
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
    told = [r.getMessage() for r in caplog.records if "round 1" in r.getMessage()]
    assert told[: 2 - labelled] == [
        f"client {index}: no example of round 1 had a label to predict, so it has no loss"
        for index in range(2 - labelled)
    ]


@pytest.mark.parametrize(
    ("learns", "accounts", "told"),
    [("all", False, True), ("all", True, True), ("tail", False, True), ("tail", True, False)],
)
def test_only_a_tail_that_learns_alone_under_an_epsilon_has_no_loss(
    learns: str, accounts: bool, told: bool
) -> None:
    hiding = Hiding()
    hiding.accounts = accounts  # type: ignore[misc]
    client = attached(TextToy(clients=1, hiding=lambda: hiding), learns=learns)
    decode(client, encode(client))
    assert ("train-loss" in client.release()[1]) is told


def test_matthews_is_the_mean_over_clients_that_have_one() -> None:
    """Of test texts of one class it is 0 / 0, and such clients lowered the mean with their 0."""
    toy = TextToy(clients=3, tests=6, task="classification", dropout=0.0)
    told: list[dict[str, float]] = []

    class Told(ClassScores):
        def result(self) -> dict[str, float]:
            told.append(super().result())
            return told[-1]

    clients = toy.clients_for(scores=Told)
    texts = [torch.arange(3, 7)] * 6
    for client, labels in zip(clients, ([1] * 6, [0, 1] * 3, [0, 0, 1] * 2), strict=True):
        client.tests["federated"] = TextSet(texts, labels)
    strategy = USplitSL(toy.server(), evaluation="federated", device="cpu")
    strategy.fit(clients, 1)
    assert [sorted(scores) for scores in told] == [
        ["accuracy", "loss"], ["accuracy", "loss", "matthews"], ["accuracy", "loss", "matthews"]
    ]  # fmt: skip
    row = strategy.rows[0]
    assert row["eval_matthews"] == pytest.approx((told[1]["matthews"] + told[2]["matthews"]) / 2)


@pytest.mark.parametrize("clients", [2, 3])
def test_one_client_adds_no_column(clients: int) -> None:
    toy = TextToy(clients=clients, tests=6, task="classification", dropout=0.0)
    told = []

    class Told(ClassScores):
        def result(self) -> dict[str, float]:
            told.append(self)
            return {**super().result(), **({"alone": 1.0} if len(told) == 1 else {})}

    strategy = USplitSL(toy.server(), evaluation="federated", device="cpu")
    strategy.fit(toy.clients_for(scores=Told), 1)
    assert len(told) == clients
    assert "eval_alone" not in strategy.rows[0]


def evaluated(further: dict[str, Any], *, rounds: int = 1) -> list[dict[str, Any]]:
    """Return the rows of a run whose clients return these scores, too."""
    toy = TextToy(clients=2, tests=6, task="classification", dropout=0.0)
    options: dict[str, Any] = {"optimizer": sgd(0.0), "device": "cpu"}

    class Own(ClassScores):
        def result(self) -> dict[str, float]:
            return {**super().result(), **further}

    strategy = USplitSL(toy.server(), evaluation="federated", **options)
    strategy.fit(toy.clients_for(scores=Own), rounds)
    return strategy.rows


@pytest.mark.parametrize(("name", "value"), [("F1", 0.4), ("Bad Name", 1.0), ("f", float("nan"))])
def test_a_score_that_no_metric_can_be_is_left_out_with_a_word(
    name: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The evaluation was discarded, and the log said that it had no finite numbers."""
    (expected,) = evaluated({"r2": 0.1})
    first, second = evaluated({name: value, "r2": 0.1}, rounds=2)
    assert first["accuracy"] == expected["accuracy"] is not None
    assert first["eval_r2"] == second["eval_r2"] == pytest.approx(0.1)
    assert first.keys() == expected.keys()
    told = [r.getMessage() for r in caplog.records if "left out of" in r.getMessage()]
    assert told == [
        f"left out of the run's metrics: {name!r}; a score of an evaluation is a finite number, "
        "and its name begins with a lower-case letter, and has at most 40 more, digits, '_' or '-'"
    ]


def test_scores_may_be_tensors_and_numbers_of_numpy() -> None:
    """They were no numbers to the server."""
    (plain,) = evaluated({"a": 0.5, "b": 3})
    (row,) = evaluated({"a": torch.tensor(0.5), "b": np.int64(3)})
    assert (row["eval_a"], row["eval_b"]) == (plain["eval_a"], plain["eval_b"]) == (0.5, 3.0)
    (row,) = evaluated({"accuracy": np.float32(0.5), "loss": torch.tensor(2.0)})
    assert (row["accuracy"], row["eval_loss"]) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"accuracy": 1.5}, "clients 0, 1: says that its accuracy is 1.5; it must be 0 to 1"),
        ({"loss": float("nan")}, "clients 0, 1: says that its loss is nan; needed is a finite num"),
        ({"loss": [1.0]}, "clients 0, 1: says that its loss is None; needed is a finite number"),
    ],
)
def test_an_evaluation_without_loss_or_accuracy_is_refused(
    further: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = evaluated(further)
    assert row["accuracy"] is None
    assert said in caplog.text


def test_scores_in_no_dictionary_are_refused() -> None:
    class Listed(ClassScores):
        def result(self) -> Any:
            return [0.5]

    toy = TextToy(clients=1, tests=4, task="classification")
    client = attached(toy, scores=Listed)
    sent = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    client.run("decode_test", {"outputs": sent["messages"]})
    with pytest.raises(ClientError, match="result of the scores returns a list of a float; needed"):
        client.run("score", {"kind": "federated"})
