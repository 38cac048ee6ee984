"""Split learning on inputs mixed before the lower segment, for comparison."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import nn

from flwr_splitmix.mixers import (
    InputLevel,
    Mixer,
    Mixup,
    PatchCutMix,
    RandomCutout,
    VanillaCutMix,
)
from flwr_splitmix.mixers.input_level import Across
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class _InputLevelSL(SplitStrategy):
    """PSL on mixed inputs; a subclass defines how they are mixed.

    Parameters
    ----------
    upper
        The upper segment.
    grid
        (rows, columns) of the cells that images are divided into; None uses the grid of patches, or
        a single cell where inputs are summed (`InputMixupSL`).
    across
        "batch" mixes within each client's batch. "clients" mixes with the raw inputs of other
        clients, which works only within one process (`fit`): `start` rejects it.
    **options
        See `SplitStrategy`.

    Source: DP-CutMixSL, table 6.
    """

    mixing: ClassVar[type[Mixer]]

    def __init__(
        self,
        upper: nn.Module,
        *,
        grid: tuple[int, int] | None = None,
        across: Across = "batch",
        **options: Unpack[SplitOptions],
    ) -> None:
        super().__init__(upper, mixer=InputLevel(self.mixing(), grid, across=across), **options)


class InputMixupSL(_InputLevelSL):
    """PSL on weighted sums of two inputs."""

    mixing = Mixup


class InputCutoutSL(_InputLevelSL):
    """PSL on inputs with random cells left out."""

    mixing = RandomCutout


class InputVanillaCutMixSL(_InputLevelSL):
    """PSL on inputs in which one box comes from another input."""

    mixing = VanillaCutMix


class InputCutMixSL(_InputLevelSL):
    """PSL on inputs in which random cells come from another input."""

    mixing = PatchCutMix


class InputMixupSFL(InputMixupSL):
    """InputMixupSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class InputCutoutSFL(InputCutoutSL):
    """InputCutoutSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class InputVanillaCutMixSFL(InputVanillaCutMixSL):
    """InputVanillaCutMixSL whose lower segments are averaged every round, or by `aggregator`."""

    averages = True


class InputCutMixSFL(InputCutMixSL):
    """InputCutMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True
