"""PSL and SFL: parallel split learning without mixing."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class PSL(SplitStrategy):
    """Parallel split learning: clients step in parallel; each keeps its own lower segment.

    Parameters
    ----------
    upper
        The upper segment.
    **options
        See `SplitStrategy`.

    Source: CutMixSL, section 2 and figure 1a.
    """

    def __init__(self, upper: nn.Module, **options: Unpack[SplitOptions]) -> None:
        super().__init__(upper, mixer=None, **options)


class SFL(PSL):
    """SplitFed learning: PSL whose lower segments are averaged every round.

    Parameters
    ----------
    upper
        The upper segment.
    aggregator
        Flower strategy for the lower segments; FedAvg by default.
    **options
        See `SplitStrategy`.

    Source: SplitFed (Thapa et al., 2020); CutMixSL, figure 1b.
    """

    averages = True
