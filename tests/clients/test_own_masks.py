"""Hidings whose own `obfuscate` masks series: lengths leave, and the trials know of the masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import (
    DPSGD,
    HIDINGS,
    DPForward,
    Hiding,
    MixGuard,
    NaiveMix,
    NoPeek,
    SentBatch,
    SnD,
)
from tests.clients.ushape import ORDER, Masked, encode

TOKENS = 6


class SeriesForward(DPForward):
    """The last feature of a token is 0 where a series is padded."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        return super().obfuscate(replace(batch, mask=(batch.inputs[..., -1] != 0).long()))

    def charge(self, kind: str, records: np.ndarray) -> None:
        super().charge(kind, records)


class MeanLeftOut(nn.Module):
    """Takes from each token the mean of all tokens of the batch that a whole mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.inner(values)
        if mask.shape[1] != states.shape[1]:
            return states
        share = mask.unsqueeze(-1).to(states.dtype)
        return (states - (states * share).sum((0, 1)) / share.sum()) * share


def client_with(head: nn.Module, hiding: DPForward) -> UShapeClient:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, TOKENS, 4, generator=generator)
    for row, series in enumerate(inputs):
        series[TOKENS - row % 4 :] = 0
    data = TensorDataset(inputs, torch.arange(8) % 2)
    tail = Masked(nn.Linear(3, 2))
    return UShapeClient(head, tail, data, batch_size=8, hiding=hiding, learns="tail", device="cpu")


@pytest.mark.parametrize(("hiding", "tells_lengths"), [(SeriesForward, True), (DPForward, False)])
def test_lengths_that_a_mask_of_ones_own_tells_are_said_not_to_be_covered(
    hiding: type[DPForward], tells_lengths: bool
) -> None:
    """Otherwise the statement would hide that the server has all lengths."""
    client = client_with(Masked(nn.Linear(4, 3)), hiding(epsilon=8.0))
    client.attach(ORDER, None)
    encode(client)
    assert ("the lengths of texts or series" in str(client.hiding.statement())) == tells_lengths  # type: ignore[attr-defined]


def test_a_head_that_mixes_examples_only_under_a_whole_mask_is_refused() -> None:
    """A trial with a mask (b, 1) would not show it."""
    with pytest.raises(ClientError, match=r"the head has .* so there is no epsilon"):
        client_with(MeanLeftOut(), SeriesForward(epsilon=8.0)).attach(ORDER, None)
    client_with(MeanLeftOut(), DPForward(epsilon=8.0)).attach(ORDER, None)  # never has such a mask


class Unmasked(SeriesForward):
    """States that its `obfuscate` sends the masks that it gets."""

    own_masks = False

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        return DPForward.obfuscate(self, batch)


class Mixed:
    """Mixed in before a hiding; it is none itself."""

    obfuscate = SeriesForward.obfuscate


class MixedForward(Mixed, DPForward):
    """Has an `obfuscate` that no class of the library's has."""


class Below(SeriesForward):
    """Overrides nothing itself."""


@pytest.mark.parametrize(
    ("hiding", "has_own_masks"),
    [
        *((kind, False) for kind in (Hiding, NaiveMix, MixGuard, SnD, NoPeek, DPSGD, DPForward)),
        *((kind, True) for kind in (SeriesForward, MixedForward, Below)),
        (Unmasked, False),
    ],
)
def test_an_obfuscate_of_ones_own_may_send_other_masks_unless_it_states_otherwise(
    hiding: type[Hiding], has_own_masks: bool
) -> None:
    assert hiding.own_masks == has_own_masks


@pytest.mark.parametrize(
    ("hiding", "mixes"),
    [
        *((kind, kind is NaiveMix) for kind in (Hiding, *HIDINGS)),
        *((kind, True) for kind in (SeriesForward, MixedForward, Below, Unmasked)),
    ],
)
def test_it_may_also_mix_a_batch_and_attacks_then_read_batches_whole(
    hiding: type[Hiding], mixes: bool
) -> None:
    """Attacks on a hiding that mixes a batch compare batches, not single images."""
    assert hiding.mixes_batch == mixes
