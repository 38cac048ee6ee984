"""Shuffling behind the cut: alone (ShuffledPSL) and after CutMix (ShuffledCutMixSL)."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import NoMixing, PatchCutMix, Shuffled
from flwr_splitmix.mixers.grouping import Leftover, Regroup
from flwr_splitmix.mixers.masks import Rounding
from flwr_splitmix.mixers.patch_cutmix import Gradient
from flwr_splitmix.server.options import Options
from flwr_splitmix.strategies.split import SplitStrategy


class ShuffledPSL(SplitStrategy):
    """PSL with shuffling: the mixer permutes the patches of each sample and mixes nothing.

    Parameters
    ----------
    upper
        The upper segment; it adds the position embeddings (`positions="upper"`), by slot.
    **options
        See `SplitStrategy`.

    Source: DP-CutMixSL, table 7 ("PSL w. Shuffling").
    """

    def __init__(self, upper: nn.Module, **options: Unpack[Options]) -> None:
        super().__init__(upper, mixer=Shuffled(NoMixing()), **options)


class ShuffledSFL(ShuffledPSL):
    """ShuffledPSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class ShuffledCutMixSL(SplitStrategy):
    """CutMixSL whose mixed samples have their patches shuffled before the upper segment.

    Parameters
    ----------
    upper
        The upper segment; it adds the position embeddings (`positions="upper"`), by slot.
    k, alpha
        Clients per mixing group; concentration of the mixing ratios (None: as even as possible).
    rounding, min_patches, gradient, regroup, leftover, mask_per_sample
        See `PatchCutMix`.
    **options
        See `SplitStrategy`.

    Source: CutMixSL, eq. 12 and table 1.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        k: int = 2,
        alpha: float | None = 6.0,
        rounding: Rounding = "multinomial",
        min_patches: int = 0,
        gradient: Gradient = "unicast",
        regroup: Regroup = "step",
        leftover: Leftover = "send",
        mask_per_sample: bool = False,
        **options: Unpack[Options],
    ) -> None:
        mixer = PatchCutMix(
            k,
            alpha,
            rounding=rounding,
            min_patches=min_patches,
            gradient=gradient,
            regroup=regroup,
            leftover=leftover,
            mask_per_sample=mask_per_sample,
        )
        super().__init__(upper, mixer=Shuffled(mixer), **options)


class ShuffledCutMixSFL(ShuffledCutMixSL):
    """ShuffledCutMixSL whose lower segments are averaged every round, or by `aggregator`."""

    averages = True
