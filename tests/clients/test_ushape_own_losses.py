"""UShapeClient: losses of somebody's own, of labels of any form."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.hiding import Hiding, NaiveMix, Sent
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy
from tests.clients.ushape import PATCHES, Masked

HEAD, INPUTS = PATCHES
MEANS = INPUTS.mean((1, 2))


class Regressing(UShapeClient):
    """Learns rows of numbers, (b, 1) or (b, 2)."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        said = self.tail(hidden, sent.mask).mean(1)[:, : sent.batch.labels.shape[1]]
        return mse_loss(said, sent.batch.labels)


class Multi(UShapeClient):
    """Learns several labels of 0 and 1."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        said = self.tail(hidden, sent.mask).mean(1)[:, : sent.batch.labels.shape[1]]
        return binary_cross_entropy_with_logits(said, sent.batch.labels.float())


def client_of(kind: type[UShapeClient], labels: Tensor, **options: Any) -> UShapeClient:
    head, tail = Masked(nn.Linear(4, 3)), Masked(nn.Linear(3, 2))
    data: Any = TensorDataset(options.pop("inputs", INPUTS), labels)
    return kind(head, tail, data, batch_size=4, device="cpu", **options)


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
    """The rule of next tokens was applied to them: a row's first label is none, nor is -100."""
    strategy = USplitSL(Masked(nn.Linear(3, 3)), device="cpu")
    strategy.fit([client_of(kind, labels, hiding=hiding())], 2)
    assert all(row["loss"] > 0 for row in strategy.rows)
    assert "had a label to predict" not in caplog.text


class Compact(UShapeClient):
    """Needs no labels: hidden states shall be small."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        return hidden.square().mean()


def test_texts_without_labels_are_for_a_loss_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    """A client with such texts could not be made."""
    toy, texts = TextToy(clients=1), [torch.arange(3, 7)] * 8
    data = TextSet(texts, [torch.full_like(text, -100) for text in texts])
    with pytest.raises(ClientError, match="none of 8 training texts has a label"):
        UShapeClient(toy.head(), toy.tail(), data, batch_size=4, device="cpu")
    strategy = USplitSL(toy.server(), device="cpu")
    strategy.fit([Compact(toy.head(), toy.tail(), data, batch_size=4, device="cpu")], 1)
    assert strategy.rows[0]["loss"] > 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
