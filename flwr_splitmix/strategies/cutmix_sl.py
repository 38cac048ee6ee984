"""CutMixSL and CutMixSFL: Smashed Patch CutMix across clients."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import nn

from flwr_splitmix.mixers import PatchCutMix, Shuffled
from flwr_splitmix.mixers.grouping import Leftover, Regroup
from flwr_splitmix.mixers.masks import Rounding
from flwr_splitmix.mixers.patch_cutmix import Gradient
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class CutMixSL(SplitStrategy):
    """Split learning on CutMix data: each client sends some patches, other clients fill the gaps.

    Parameters
    ----------
    upper
        The upper segment.
    k, alpha
        Clients per mixing group; concentration of the mixing ratios (None: as even as possible).
    rounding, min_patches, gradient, regroup, leftover, k_times, mask_per_sample
        See `PatchCutMix`.
    **options
        See `SplitStrategy`.

    Attributes
    ----------
    shuffles
        Whether the mixer shuffles the patches of its mixtures.

    Source: CutMixSL, algorithm 2.
    """

    shuffles: ClassVar[bool] = False

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
        k_times: bool = False,
        mask_per_sample: bool = False,
        **options: Unpack[SplitOptions],
    ) -> None:
        mixer = PatchCutMix(
            k,
            alpha,
            rounding=rounding,
            min_patches=min_patches,
            gradient=gradient,
            regroup=regroup,
            leftover=leftover,
            k_times=k_times,
            mask_per_sample=mask_per_sample,
        )
        super().__init__(upper, mixer=Shuffled(mixer) if self.shuffles else mixer, **options)


class CutMixSFL(CutMixSL):
    """CutMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`.

    Source: CutMixSL, section 4 and appendix C.
    """

    averages = True
