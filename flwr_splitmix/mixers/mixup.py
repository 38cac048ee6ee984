"""Smashed Mixup: the weighted sum of the smashed data of a group's members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from flwr_splitmix.mixers.facts import Regroup
from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.grouping import GroupMixer, Leftover
from flwr_splitmix.mixers.masks import checked_alpha, sample_ratios
from flwr_splitmix.mixers.plan import Member, SmashedShape
from flwr_splitmix.privacy.events import Family


@dataclass(frozen=True, kw_only=True)
class WeightedShare(FullShare):
    """All smashed data, weighted by the mixing ratio at the client."""

    name: ClassVar[str] = "weighted"
    family: ClassVar[Family | None] = "mixup"
    enlarges: ClassVar[bool] = False

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Upload `lam * smashed`; its gradient G reaches the smashed data as `lam * G`."""
        weighted = self.lam * smashed
        return weighted, weighted

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Add the weighted smashed data."""
        mixed += upload

    @property
    def summed(self) -> bool:
        """True: a mixture is a sum."""
        return True


class Mixup(GroupMixer):
    """Weighted sums of the smashed data, and of the labels, of `k` clients.

    Parameters
    ----------
    k, regroup, leftover
        Groups of clients; see `GroupMixer`.
    alpha
        Concentration of the Dirichlet distribution of the mixing ratios; None gives 1/k to each.

    Raises
    ------
    ValueError
        If `k` < 2 or `alpha` <= 0.

    Source: CutMixSL, equations 7 and 8 (appendix B) and Table 1; DP-CutMixSL, Tables 1 and 4. The
    ratios are distributed as in patch CutMix, without rounding to patches.
    """

    cover = "weighted"

    def __init__(
        self,
        k: int = 2,
        alpha: float | None = 6.0,
        *,
        regroup: Regroup = "step",
        leftover: Leftover = "send",
    ) -> None:
        super().__init__(k, regroup=regroup, leftover=leftover)
        self.alpha = checked_alpha(alpha)

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        """Draw the mixing ratios."""
        ratios = sample_ratios(len(clients), self.alpha, rng)
        return [
            Member(client, WeightedShare(lam=float(lam)))
            for client, lam in zip(clients, ratios, strict=True)
        ]
