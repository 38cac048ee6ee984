"""MixupSL and MixupSFL: weighted sums of the smashed data of several clients."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import Mixup
from flwr_splitmix.mixers.grouping import Leftover, Regroup
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class MixupSL(SplitStrategy):
    """Split learning on Mixup data: each client sends its smashed data times its mixing ratio.

    Parameters
    ----------
    upper
        The upper segment.
    k, alpha
        Clients per mixing group; concentration of the mixing ratios (None: 1/k each).
    regroup, leftover
        See `Mixup`.
    **options
        See `SplitStrategy`.

    Source: CutMixSL, table 1; DP-CutMixSL, table 4.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        k: int = 2,
        alpha: float | None = 6.0,
        regroup: Regroup = "step",
        leftover: Leftover = "send",
        **options: Unpack[SplitOptions],
    ) -> None:
        super().__init__(
            upper, mixer=Mixup(k, alpha, regroup=regroup, leftover=leftover), **options
        )


class MixupSFL(MixupSL):
    """MixupSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True
