"""Mixing inputs by a mixer of one's own: its shares and its weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    GroupMixer,
    InputLevel,
    MaskShare,
    Member,
    PatchCutMix,
    SmashedShape,
    WeightedShare,
)
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy
from tests.mixers.test_input_level import SHAPE, share_of


class Halves(GroupMixer):
    """Weighted sums of two clients, half of each."""

    cover = "weighted"

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        return [Member(client, WeightedShare(lam=1 / len(clients))) for client in clients]


def test_weighted_sums_of_an_own_mixer_need_no_grid() -> None:
    """Its patches form no square, and it is no Mixup."""
    series = replace(SHAPE, patches=10, grid=None)
    share = share_of(InputLevel(Halves(2)).plan([0, 1], series, np.random.default_rng(0)), 0)
    assert (share.rows, share.columns) == (1, 1)


@dataclass(frozen=True, kw_only=True)
class Even(MaskShare):
    """Keeps the cells of even number, or the others."""

    name: ClassVar[str] = "even"
    first: int

    def positions(self, batch: int) -> Tensor:
        return torch.arange(self.first, self.patches, 2)

    def count(self) -> int:
        return len(range(self.first, self.patches, 2))


class Alternating(PatchCutMix):
    """Gives two members every second cell each."""

    shares = (Even,)

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        return [
            Member(client, Even(patches=shape.patches, lam=0.5, first=first))
            for first, client in enumerate(clients)
        ]


@pytest.mark.parametrize("across", ["clients", "batch"])
def test_clients_know_the_shares_of_an_own_mixer_of_inputs(across: Any) -> None:
    """`InputLevel` says which there are, so that clients do not refuse each other's."""
    toy = Toy(clients=2)
    mixer = InputLevel(Alternating(), (1, toy.patches), across=across)
    strategy = SplitStrategy(toy.upper(), mixer=mixer, device="cpu", steps_per_round=1)
    strategy.fit(toy.make_clients(shares=mixer.shares), 1)
    assert [row["clients_failed"] for row in strategy.rows] == [0]
