"""UShapeClient: losses of somebody's own, of labels of any form."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, mse_loss
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding, NaiveMix, SentBatch
from flwr_splitmix.strategies import DPSGDSL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.clients.ushape import ORDER, PATCHES, Masked, decode, encode

HEAD, INPUTS = PATCHES
MEANS = INPUTS.mean((1, 2))


class Regressing(UShapeClient):
    """Learns rows of numbers, (b, 1) or (b, 2)."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        predictions = self.tail(hidden, sent.mask).mean(1)[:, : sent.batch.labels.shape[1]]
        return mse_loss(predictions, sent.batch.labels)


class Multi(UShapeClient):
    """Learns several labels of 0 and 1."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        predictions = self.tail(hidden, sent.mask).mean(1)[:, : sent.batch.labels.shape[1]]
        return binary_cross_entropy_with_logits(predictions, sent.batch.labels.float())


def client_of(kind: type[UShapeClient], labels: Tensor, **options: Any) -> UShapeClient:
    head, tail = Masked(nn.Linear(4, 3)), Masked(nn.Linear(3, 2))
    data: Any = TensorDataset(options.pop("inputs", INPUTS), labels)
    return kind(head, tail, data, batch_size=4, device="cpu", **options)


def test_labels_of_another_dtype_than_the_tails_are_named() -> None:
    """Python's floats become float64; the server would hear of a RuntimeError alone."""

    class Huber(Regressing):
        def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
            return huber_loss(self.tail(hidden, sent.mask).mean(1)[:, :1], sent.batch.labels)

    client = client_of(Huber, MEANS.double()[:, None])
    client.attach(ORDER, None)
    reply = encode(client)
    message = r"labels are float64, and the tail computes in float32; convert them in it"
    with pytest.raises(ClientError, match=message):
        decode(client, reply)


@pytest.mark.parametrize("hiding", [Hiding, NaiveMix])
@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        (Regressing, MEANS[:, None]),
        (Multi, (MEANS[:, None] > 0).long()),
        (Regressing, torch.stack([MEANS, torch.full_like(MEANS, -100.0)], 1)),
    ],
    ids=["numbers", "one label of 0 and 1", "targets of -100"],
)
def test_a_loss_of_ones_own_counts_whatever_the_labels(
    kind: type[UShapeClient],
    labels: Tensor,
    hiding: type[Hiding],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rule of next tokens, that a row's first label and -100 are none, does not apply."""
    strategy = USplitSL(Masked(nn.Linear(3, 3)), device="cpu")
    strategy.fit([client_of(kind, labels, hiding=hiding())], 2)
    assert all(row["loss"] > 0 for row in strategy.rows)
    assert "had a label to predict" not in caplog.text


class Compact(UShapeClient):
    """Needs no labels: hidden states shall be small."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return hidden.square().mean()


class NoisyRegression(DPSGD):
    """Learns numbers with noise; its loss is a mean over examples, so its charges hold."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return mse_loss(self.logits(hidden, sent).mean(1)[:, :1], sent.batch.labels)

    def charge(self, kind: str, records: np.ndarray) -> None:
        super().charge(kind, records)


@pytest.mark.parametrize("labels", [MEANS[:, None], torch.arange(len(MEANS))[:, None] % 2.0])
def test_the_loss_of_an_own_hiding_takes_labels_of_its_own(labels: Tensor) -> None:
    """Neither the hiding nor the client sends users to the other."""
    client = client_of(UShapeClient, labels, hiding=NoisyRegression())
    strategy = DPSGDSL(Masked(nn.Linear(3, 3)), device="cpu")
    strategy.fit([client], 2)
    assert all(row["loss"] > 0 for row in strategy.rows)
    assert client.hiding.metrics()["epsilon-if-poisson"] > 0


class Penalised(Hiding):
    """Adds a term to the loss of this package."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return super().loss(hidden, sent) + hidden.square().mean()


def test_a_hiding_that_adds_to_the_loss_has_its_labels_checked() -> None:
    """Rows of labels must not be taken for classes of places."""
    client = client_of(UShapeClient, (MEANS[:, None] > 0).long(), hiding=Penalised())
    client.attach(ORDER, None)
    with pytest.raises(ExamplesError, match=r"labels have shape .*, such as several labels each"):
        decode(client, encode(client))


def test_texts_without_labels_are_for_a_loss_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    toy, texts = TextToy(clients=1), [torch.arange(3, 7)] * 8
    data = TextSet(texts, [torch.full_like(text, -100) for text in texts])
    for hiding in (Hiding(), Penalised()):
        with pytest.raises(ClientError, match="none of 8 training texts has a label"):
            UShapeClient(toy.head(), toy.tail(), data, hiding=hiding, batch_size=4, device="cpu")
    strategy = USplitSL(toy.server(), device="cpu")
    strategy.fit([Compact(toy.head(), toy.tail(), data, batch_size=4, device="cpu")], 1)
    assert strategy.rows[0]["loss"] > 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Divided(UShapeClient):
    """Divides by what is 0 in examples whose label is 0."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        means = self.tail(hidden, sent.mask).mean((1, 2))
        ratios: Tensor = means.abs() / sent.batch.labels  # of two signs the mean would be NaN
        return ratios.mean()


class Masking(Regressing):
    """Leaves out what has no target."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        labels = sent.batch.labels
        finite_batch = replace(sent.batch, labels=labels.nan_to_num())
        return super().loss(hidden, replace(sent, batch=finite_batch))


def decoded(client: UShapeClient, weight: float | None = None) -> dict[str, Any]:
    client.attach(ORDER, None)
    reply = encode(client)
    if weight is not None:
        nn.init.constant_(next(client.tail.parameters()), weight)
    return decode(client, reply)


class Rooted(UShapeClient):
    """The root of 0 has an infinite gradient."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        predictions: Tensor = self.tail(hidden, sent.mask)
        return (predictions * 0).square().sum().sqrt()


ROWS = MEANS[:, None]


@pytest.mark.parametrize(
    ("client", "weight", "message"),
    [
        (
            lambda: client_of(Regressing, torch.full_like(ROWS, float("nan"))),
            None,
            "loss is NaN: its labels have NaN or infinite numbers: replace them in the data set, "
            "leave these examples out, or let loss pass over them",
        ),
        (
            lambda: client_of(Regressing, ROWS),
            float("nan"),
            "loss is NaN: the weights of its tail are NaN or infinite: training has diverged; a "
            "smaller learning rate, or gradients that are clipped, may prevent it",
        ),
        (
            lambda: client_of(Divided, torch.zeros(8)),
            1.0,
            "loss is infinite: it makes that of finite labels with finite weights, as a division "
            "by 0, a logarithm of 0 or a number too large for its type does",
        ),
        (
            lambda: client_of(Rooted, ROWS),
            None,
            "the gradient of loss has NaN or infinite numbers, though loss is finite, as that of a "
            "square root or a norm has at 0: add a small number under the root",
        ),
    ],
    ids=["labels", "weights", "loss", "gradient"],
)
def test_a_loss_that_is_not_finite_is_refused_with_its_reason(
    client: Any, weight: float | None, message: str
) -> None:
    """Not as "NaN or infinite numbers" that the client uploads."""
    with pytest.raises(ClientError) as error:
        decoded(client(), weight)
    assert str(error.value) == message


def test_a_gradient_that_nobody_uses_may_be_anything() -> None:
    """Only the tail learns, so that no gradient goes back."""
    assert decoded(client_of(Rooted, ROWS, learns="tail")) == {"gradients": []}


def test_labels_that_are_not_finite_may_be_passed_over() -> None:
    (gradient,) = decoded(client_of(Masking, ROWS.log()))["gradients"]
    assert gradient.isfinite().all()


def test_a_loss_that_is_not_finite_is_not_told_where_an_epsilon_is_kept() -> None:
    """Whether it is depends on the data."""
    noisy = DPForward()
    (gradient,) = decoded(client_of(Regressing, ROWS.log(), hiding=noisy))["gradients"]
    assert not gradient.isfinite().all()


class Series(Hiding):
    """Masks series where they are padded, which their last feature shows."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        return super().obfuscate(replace(batch, mask=(batch.inputs[..., -1] != 0).long()))


class MixedSeries(Series, NaiveMix):
    pass


@pytest.mark.parametrize("hiding", [Series, MixedSeries])
def test_padded_series_may_have_a_mask(hiding: type[Hiding]) -> None:
    """Head, trunk and tail get it, in training and in evaluation."""
    series = INPUTS.clone()
    series[:, 4:] = 0.0
    calls: list[str] = []

    class Seeing(Masked):
        def __init__(self, name: str, first: nn.Module) -> None:
            super().__init__(first)
            self.name = name

        def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
            if mask.shape == (4, 6) and not mask[:, 4:].any() and mask[:, :4].all():
                calls.append(f"{self.name} {'in training' if self.training else 'tested'}")
            hidden = super().forward(inputs, mask)
            return hidden.mean(1) if self.name == "tail" else hidden

    data: Any = TensorDataset(series, torch.arange(8) % 2)
    head, tail = Seeing("head", nn.Linear(4, 3)), Seeing("tail", nn.Linear(3, 2))
    options: dict[str, Any] = {"batch_size": 4, "device": "cpu", "hiding": hiding()}
    client = UShapeClient(head, tail, data, test_data=data, **options)
    trunk = Seeing("trunk", nn.Linear(3, 3))
    USplitSL(trunk, device="cpu", evaluation="federated").fit([client], 1)
    for name in ("head", "trunk", "tail"):
        assert {f"{name} in training", f"{name} tested"} <= {*calls}
