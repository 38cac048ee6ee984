"""SFL: SplitFed, parallel split learning whose lower segments are averaged every round."""

from __future__ import annotations

from typing import Unpack

from flwr.serverapp.strategy import Strategy
from torch import nn

from flwr_splitmix.strategies.aggregation import fedavg
from flwr_splitmix.strategies.options import Options
from flwr_splitmix.strategies.strategy import SplitStrategy


class SFL(SplitStrategy):
    """SplitFed learning.

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

    def __init__(
        self, upper: nn.Module, *, aggregator: Strategy | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(upper, aggregator=aggregator or fedavg(), **options)
