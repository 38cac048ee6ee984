"""Shuffling behind the cut: alone (ShuffledPSL) and after CutMix (ShuffledCutMixSL)."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import NoMixing, Shuffled
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.cutmix_sl import CutMixSL
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

    def __init__(self, upper: nn.Module, **options: Unpack[SplitOptions]) -> None:
        super().__init__(upper, mixer=Shuffled(NoMixing()), **options)


class ShuffledSFL(ShuffledPSL):
    """ShuffledPSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class ShuffledCutMixSL(CutMixSL):
    """CutMixSL whose mixed samples have their patches shuffled before the upper segment.

    Parameters
    ----------
    upper
        The upper segment; it adds the position embeddings (`positions="upper"`), by slot.
    **options
        See `CutMixSL`.

    Source: CutMixSL, eq. 12 and table 1.
    """

    shuffles = True


class ShuffledCutMixSFL(ShuffledCutMixSL):
    """ShuffledCutMixSL whose lower segments are averaged every round, or by `aggregator`."""

    averages = True
