"""VanillaCutMixSL and VanillaCutMixSFL: one client of a pair fills a box, the other the rest."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import VanillaCutMix
from flwr_splitmix.mixers.grouping import Leftover, Regroup
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class VanillaCutMixSL(SplitStrategy):
    """Split learning on pairs of clients: one fills a box, the other the rest.

    Parameters
    ----------
    upper
        The upper segment; its `geometry`, or else that of the lower segments, gives the grid of
        patches, which must otherwise be square.
    k
        Must be 2.
    beta
        The a of Beta(a, a), from which the ratio is drawn.
    regroup, leftover
        See `VanillaCutMix`.
    **options
        See `SplitStrategy`.

    Source: CutMixSL, eq. 10; DP-CutMixSL, table 4 ("PSL w. Vanilla CutMix").
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        k: int = 2,
        beta: float = 1.0,
        regroup: Regroup = "step",
        leftover: Leftover = "send",
        **options: Unpack[SplitOptions],
    ) -> None:
        super().__init__(
            upper, mixer=VanillaCutMix(k, beta, regroup=regroup, leftover=leftover), **options
        )


class VanillaCutMixSFL(VanillaCutMixSL):
    """VanillaCutMixSL whose lower segments are averaged every round, or by `aggregator`."""

    averages = True
