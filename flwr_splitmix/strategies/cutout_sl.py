"""CutoutSL and CutoutSFL: smashed data with random patches left out."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import RandomCutout
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class CutoutSL(SplitStrategy):
    """Split learning on CutSmashed data: each client sends some of its patches; gaps stay empty.

    Parameters
    ----------
    upper
        The upper segment.
    ratio, alpha
        Fraction of the patches kept; None draws it with concentration `alpha`.
    mask_per_sample, fixed_positions
        See `RandomCutout`.
    **options
        See `SplitStrategy`.

    Source: CutMixSL, figure 2 and table 1; DP-CutMixSL, table 4 ("PSL w. Random Cutout").
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        ratio: float | None = None,
        alpha: float | None = 6.0,
        mask_per_sample: bool = False,
        fixed_positions: bool = False,
        **options: Unpack[SplitOptions],
    ) -> None:
        mixer = RandomCutout(
            ratio, alpha, mask_per_sample=mask_per_sample, fixed_positions=fixed_positions
        )
        super().__init__(upper, mixer=mixer, **options)


class CutoutSFL(CutoutSL):
    """CutoutSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True
