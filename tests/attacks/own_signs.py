"""A share and a mixer of somebody's own: signs that the server draws, and so knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers import Group, Member, Mixer, Plan, SmashedShape, WeightedShare


@dataclass(frozen=True, kw_only=True)
class SignShare(WeightedShare):
    """All patches, weighted, each with a sign that the share's seed draws."""

    name: ClassVar[str] = "signs"
    seed: int

    def signs(self, tokens: int) -> Tensor:
        drawn = np.random.default_rng(self.seed).choice([-1.0, 1.0], tokens)
        return torch.from_numpy(drawn).float()[:, None]

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        signed = self.lam * smashed * self.signs(smashed.shape[1])
        return signed, signed


@dataclass(frozen=True, kw_only=True)
class KnownSignShare(SignShare):
    """The same, with what its seed gives away."""

    name: ClassVar[str] = "known-signs"

    def undo(self, placed: Tensor) -> Tensor:
        return placed * self.signs(placed.shape[1])


class SignMix(Mixer):
    """Sums over pairs of clients; its group size has no attribute."""

    cover = "weighted"
    shares = (SignShare, KnownSignShare)

    def __init__(self, kind: type[SignShare] = SignShare) -> None:
        self.kind = kind

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        order = [int(client) for client in rng.permutation(list(members))]
        groups = [order[i : i + 2] for i in range(0, len(order), 2)]
        return Plan(
            shape,
            (
                tuple(
                    Group(
                        tuple(
                            Member(c, self.kind(lam=1 / len(group), seed=int(rng.integers(2**31))))
                            for c in group
                        )
                    )
                    for group in groups
                ),
            ),
        )
