"""UShapeClient: scores besides loss and accuracy, and losses of somebody's own."""

from __future__ import annotations

from copy import deepcopy
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
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.scoring.texts import ClassScores
from flwr_splitmix.server.evaluation import ushape as evaluation
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy, sgd
from tests.clients.ushape import ORDER, PATCHES, Masked, attached


class Regressing(UShapeClient):
    """Learns numbers."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        predictions = self.tail(hidden, sent.mask).mean((1, 2))
        return mse_loss(predictions, sent.batch.labels.to(predictions.dtype))


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


def numbers(
    kind: type[UShapeClient], scores: Any = None, *, listed: bool = False, tail: Any = None
) -> UShapeClient:
    """Return a client with a floating label for each example, and the same as test data."""
    head, inputs = PATCHES
    labels = inputs.mean((1, 2))
    data: Any = TensorDataset(inputs, labels)
    if listed:
        data = [(each, float(label)) for each, label in zip(inputs, labels, strict=True)]
    tail = tail or Masked(nn.Linear(3, 2))
    options: dict[str, Any] = {"batch_size": 4, "test_data": data, "device": "cpu"}
    return kind(Masked(head), tail, data, scores=scores, **options)


@pytest.mark.parametrize("listed", [False, True])
def test_a_loss_of_ones_own_may_have_floating_labels(listed: bool) -> None:
    strategy = USplitSL(Masked(nn.Linear(3, 3)), device="cpu", evaluation="federated")
    strategy.fit([numbers(Regressing, MeanError, listed=listed)], 2)
    assert 0 < strategy.rows[-1]["eval_loss"] < 10
    message = r"labels are torch\.float.*; expected classes, int64 \(batch,\); .*scores of your own"
    with pytest.raises(ExamplesError, match=message):
        numbers(UShapeClient, listed=listed).attach(ORDER, None)
    client = numbers(Regressing, listed=listed)  # has not its own scores
    client.attach(ORDER, None)
    reply = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ExamplesError, match=message):
        client.run("decode_test", {"outputs": reply["messages"]})


class Short:
    """Scores that do not say how many examples they have scored."""

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        return batch

    def result(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (MeanError(), "scores is a MeanError; expected a class that makes .*: scores=MeanError"),
        ("r2", "scores is 'r2'; expected a class that makes .*, with the members of TextScores"),
        (Short, r"makes a Short, which lacks examples \(a number, of those scored\), add; "),
        (lambda: None, "scores makes a NoneType, which lacks examples .*, begin, add, result"),
    ],
)
def test_what_makes_no_scores_is_refused_at_once(scores: Any, message: str) -> None:
    """Otherwise it would fail at the first evaluation, after a round of training."""
    with pytest.raises(TypeError, match=message):
        numbers(Regressing, scores)


def test_matthews_is_the_mean_over_clients_that_have_one() -> None:
    """Of test texts of one class it is 0 / 0; as 0, such clients would lower the mean."""
    toy = TextToy(clients=3, tests=6, task="classification", dropout=0.0)
    client_scores: list[dict[str, float]] = []

    class Told(ClassScores):
        def result(self) -> dict[str, float]:
            client_scores.append(super().result())
            return client_scores[-1]

    clients = toy.clients_for(scores=Told)
    texts = [torch.arange(3, 7)] * 6
    for client, labels in zip(clients, ([1] * 6, [0, 1] * 3, [0, 0, 1] * 2), strict=True):
        client.tests["federated"] = TextSet(texts, labels)
    strategy = USplitSL(toy.server(), evaluation="federated", device="cpu")
    strategy.fit(clients, 1)
    assert [sorted(scores) for scores in client_scores] == [
        ["accuracy", "loss"], ["accuracy", "loss", "matthews"], ["accuracy", "loss", "matthews"]
    ]  # fmt: skip
    row = strategy.rows[0]
    assert row["eval_matthews"] == pytest.approx(
        (client_scores[1]["matthews"] + client_scores[2]["matthews"]) / 2
    )


@pytest.mark.parametrize("clients", [2, 3])
def test_one_client_adds_no_column(clients: int) -> None:
    toy = TextToy(clients=clients, tests=6, task="classification", dropout=0.0)
    instances = []

    class Told(ClassScores):
        def result(self) -> dict[str, float]:
            instances.append(self)
            return {**super().result(), **({"alone": 1.0} if len(instances) == 1 else {})}

    strategy = USplitSL(toy.server(), evaluation="federated", device="cpu")
    strategy.fit(toy.clients_for(scores=Told), 1)
    assert len(instances) == clients
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


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("F1", 0.4, "the name of a score begins with a lower-case letter, and has at most 40 more"),
        ("Bad Name", 1.0, "the name of a score begins with a lower-case letter"),
        ("auc", float("nan"), "a score is a finite number, up to 1e+100"),
    ],
)
def test_a_score_that_no_metric_can_be_is_left_out_with_the_reason(
    name: str, value: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the evaluation counts."""
    (expected,) = evaluated({"r2": 0.1})
    first, second = evaluated({name: value, "r2": 0.1}, rounds=2)
    assert first["accuracy"] == expected["accuracy"] is not None
    assert first["eval_r2"] == second["eval_r2"] == pytest.approx(0.1)
    assert first.keys() == expected.keys()
    warnings = [r.getMessage() for r in caplog.records if "left out of" in r.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"left out of the run's metrics: {name!r}; {why}")


def test_scores_that_never_end_are_told_what_ends_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table whose scores ask for batch after batch generates no tokens."""
    monkeypatch.setattr(evaluation, "MAX_ANSWER", 3)
    toy = TextToy(clients=2, tests=6, task="classification", dropout=0.0)

    class Endless(ClassScores):
        def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch:
            super().add(logits, batch)
            return batch

    strategy = USplitSL(toy.server(), evaluation="federated", device="cpu")
    strategy.fit(toy.clients_for(scores=Endless), 1)
    assert "in place of a scored one: the add of its scores must return None" in caplog.text


def test_scores_may_be_tensors_and_numbers_of_numpy() -> None:
    (plain,) = evaluated({"a": 0.5, "b": 3})
    (row,) = evaluated({"a": torch.tensor(0.5), "b": np.int64(3)})
    assert (row["eval_a"], row["eval_b"]) == (plain["eval_a"], plain["eval_b"]) == (0.5, 3.0)
    (row,) = evaluated({"accuracy": np.float32(0.5), "loss": torch.tensor(2.0)})
    assert (row["accuracy"], row["eval_loss"]) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("further", "warning"),
    [
        ({"accuracy": 1.5}, "clients 0 and 1: says that its accuracy is 1.5; it must be 0 to 1"),
        (
            {"loss": float("nan")},
            "clients 0 and 1: says that its loss is nan; expected a finite num",
        ),
        ({"loss": [1.0]}, "clients 0 and 1: says that its loss is None; expected a finite number"),
    ],
)
def test_an_evaluation_without_loss_or_accuracy_is_refused(
    further: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = evaluated(further)
    assert row["accuracy"] is None
    assert warning in caplog.text


def test_scores_in_no_dictionary_are_refused() -> None:
    class Listed(ClassScores):
        def result(self) -> Any:
            return [0.5]

    toy = TextToy(clients=1, tests=4, task="classification")
    client = attached(toy, scores=Listed)
    reply = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    client.run("decode_test", {"outputs": reply["messages"]})
    with pytest.raises(
        ClientError, match="result of the scores returns a list of a float; expected"
    ):
        client.run("score", {"kind": "federated"})


class Pixels(UShapeClient):
    """Has a class for each place of an image."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return cross_entropy(self.tail(hidden, sent.mask), sent.batch.labels)


class Maps(nn.Module):
    """A tail that makes maps of two classes, (b, 2, 2, 3), of six patches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)
        return logits.mT.reshape(len(hidden), 2, 2, 3)


class PixelScores:
    """The share of places whose class is right; `each` is what an example counts."""

    each = 1

    def __init__(self) -> None:
        self.examples = self.right = self.places = 0

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        return batch

    def add(self, logits: Tensor, batch: MaskedBatch) -> None:
        self.examples += self.each * len(batch.labels)
        self.places += batch.labels.numel()
        self.right += int((logits.argmax(1) == batch.labels).sum())

    def result(self) -> dict[str, float]:
        return {"loss": 1.0, "accuracy": self.right / self.places}


def segmenting(scores: Any = PixelScores, tail: nn.Module | None = None) -> UShapeClient:
    head, inputs = PATCHES
    data: Any = TensorDataset(inputs, (inputs[..., 0] > 0).long().view(8, 2, 3))
    options: dict[str, Any] = {"batch_size": 4, "test_data": data, "device": "cpu"}
    return Pixels(Masked(deepcopy(head)), tail or Maps(), data, scores=scores, **options)


def evaluating(*clients: UShapeClient) -> USplitSL:
    strategy = USplitSL(Masked(nn.Linear(3, 3)), device="cpu", evaluation="federated")
    strategy.fit(clients, 1)
    return strategy


def test_scores_of_ones_own_get_outputs_of_any_form() -> None:
    """Maps and plain numbers need no two or three axes."""
    assert 0 <= evaluating(segmenting()).rows[0]["accuracy"] <= 1

    class Numbers(Masked):
        def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
            return super().forward(inputs, mask).mean((1, 2))

    class Direct(UShapeClient):
        def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
            return mse_loss(self.tail(hidden, sent.mask), sent.batch.labels)

    class DirectError(MeanError):
        def add(self, logits: Tensor, batch: MaskedBatch) -> None:
            super().add(logits[:, None, None], batch)

    client = numbers(Direct, DirectError, tail=Numbers(nn.Linear(3, 2)))
    assert evaluating(client).rows[0]["eval_loss"] > 0


class Transposed(Maps):
    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        maps = super().forward(hidden, mask)
        return maps if self.training else maps.transpose(0, 1)


def test_an_evaluation_that_loses_all_clients_says_that_nothing_was_evaluated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = evaluating(segmenting(tail=Transposed()))
    assert strategy.rows[0]["accuracy"] is None
    warning = (
        "nothing was evaluated: client 0: logits returns a tensor (2, 4, 2, 3); expected a tensor "
        "whose first dimension is the examples, 4"
    )
    assert warning in caplog.messages
    assert "continued without" not in caplog.text


def test_scores_that_count_something_else_than_examples_are_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not that the client leaves out a part of its test data."""

    class Each(PixelScores):
        each = 6

    strategy = evaluating(segmenting(), segmenting(Each))
    assert strategy.rows[0]["accuracy"] is not None
    warning = (
        "the evaluation continued without client 1: its scores count 48 examples, its federated "
        "test data are 8: `add` must add the length of the batch to `examples`, and may count "
        "pixels, tokens or labels under another name"
    )
    assert warning in caplog.messages
