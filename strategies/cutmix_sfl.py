"""CutMixSFL: CutMixSL whose lower segments are also averaged every round."""

from __future__ import annotations

from typing import Unpack

from flwr.serverapp.strategy import Strategy
from torch import nn

from flwr_splitmix.strategies.aggregation import fedavg
from flwr_splitmix.strategies.cutmix_sl import CutMixOptions, cutmix
from flwr_splitmix.strategies.strategy import SplitStrategy


class CutMixSFL(SplitStrategy):
    """CutMixSL with averaged lower segments.

    Parameters
    ----------
    upper
        The upper segment.
    k, alpha
        Clients in a mixing group; concentration of the mixing ratios (None: as even as possible).
    aggregator
        Flower strategy for the lower segments; FedAvg by default.
    **options
        See `PatchCutMix` and `SplitStrategy`.

    Source: CutMixSL, section 4 and appendix C.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        k: int = 2,
        alpha: float | None = 6.0,
        aggregator: Strategy | None = None,
        **options: Unpack[CutMixOptions],
    ) -> None:
        mixer, rest = cutmix(k, alpha, options)
        super().__init__(upper, mixer=mixer, aggregator=aggregator or fedavg(), **rest)
