"""Split learning as Flower strategies: one file per family of methods, with and without averaging.

`flwr_splitmix.methods` lists the strategies; each is imported on first access.
"""

from typing import TYPE_CHECKING, Any

from flwr_splitmix import methods
from flwr_splitmix.server.evaluation.central import central_evaluation as central_evaluation
from flwr_splitmix.server.steps.pace import Pace as Pace
from flwr_splitmix.strategies.split import SplitStrategy as SplitStrategy
from flwr_splitmix.strategies.ushape import UShapeStrategy as UShapeStrategy

STRATEGIES: dict[str, type[SplitStrategy]]
"""All strategies of the L shape by name: the choices of an app, and what the law tests cover."""

USHAPE_STRATEGIES: dict[str, type[UShapeStrategy]]
"""All strategies of the U shape by name."""

_SHAPES: dict[str, methods.ShapeName] = {"STRATEGIES": "L", "USHAPE_STRATEGIES": "U"}


def __getattr__(name: str) -> Any:
    """Import a strategy, or all strategies of a shape, and cache them."""
    if name in _SHAPES:
        value: Any = {n: methods.strategy_class(n) for n in methods.strategy_names(_SHAPES[name])}
    elif name in methods.BY_NAME:
        value = methods.strategy_class(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all names, including strategies not imported yet."""
    return sorted({*globals(), *_SHAPES, *methods.BY_NAME})


if TYPE_CHECKING:  # only for type checkers and editors, which cannot follow the catalogue
    from flwr_splitmix.strategies.cutmix_sl import CutMixSFL as CutMixSFL
    from flwr_splitmix.strategies.cutmix_sl import CutMixSL as CutMixSL
    from flwr_splitmix.strategies.cutout_sl import CutoutSFL as CutoutSFL
    from flwr_splitmix.strategies.cutout_sl import CutoutSL as CutoutSL
    from flwr_splitmix.strategies.dp_sl import DPSFL as DPSFL
    from flwr_splitmix.strategies.dp_sl import DPSL as DPSL
    from flwr_splitmix.strategies.dp_sl import DPCutMixSFL as DPCutMixSFL
    from flwr_splitmix.strategies.dp_sl import DPCutMixSL as DPCutMixSL
    from flwr_splitmix.strategies.dp_sl import DPMixSFL as DPMixSFL
    from flwr_splitmix.strategies.dp_sl import DPMixSL as DPMixSL
    from flwr_splitmix.strategies.input_level_sl import InputCutMixSFL as InputCutMixSFL
    from flwr_splitmix.strategies.input_level_sl import InputCutMixSL as InputCutMixSL
    from flwr_splitmix.strategies.input_level_sl import InputCutoutSFL as InputCutoutSFL
    from flwr_splitmix.strategies.input_level_sl import InputCutoutSL as InputCutoutSL
    from flwr_splitmix.strategies.input_level_sl import InputMixupSFL as InputMixupSFL
    from flwr_splitmix.strategies.input_level_sl import InputMixupSL as InputMixupSL
    from flwr_splitmix.strategies.input_level_sl import (
        InputVanillaCutMixSFL as InputVanillaCutMixSFL,
    )
    from flwr_splitmix.strategies.input_level_sl import InputVanillaCutMixSL as InputVanillaCutMixSL
    from flwr_splitmix.strategies.mixguard import MixGuard as MixGuard
    from flwr_splitmix.strategies.mixguard import NaiveMixSL as NaiveMixSL
    from flwr_splitmix.strategies.mixup_sl import MixupSFL as MixupSFL
    from flwr_splitmix.strategies.mixup_sl import MixupSL as MixupSL
    from flwr_splitmix.strategies.psl import PSL as PSL
    from flwr_splitmix.strategies.psl import SFL as SFL
    from flwr_splitmix.strategies.shuffled_edge_sl import BatchShuffleSL as BatchShuffleSL
    from flwr_splitmix.strategies.shuffled_edge_sl import PatchShuffleSL as PatchShuffleSL
    from flwr_splitmix.strategies.shuffled_edge_sl import SpectralShuffleSL as SpectralShuffleSL
    from flwr_splitmix.strategies.shuffled_sl import ShuffledCutMixSFL as ShuffledCutMixSFL
    from flwr_splitmix.strategies.shuffled_sl import ShuffledCutMixSL as ShuffledCutMixSL
    from flwr_splitmix.strategies.shuffled_sl import ShuffledPSL as ShuffledPSL
    from flwr_splitmix.strategies.shuffled_sl import ShuffledSFL as ShuffledSFL
    from flwr_splitmix.strategies.u_split_sl import USplitFL as USplitFL
    from flwr_splitmix.strategies.u_split_sl import USplitSL as USplitSL
    from flwr_splitmix.strategies.ushape_defences import DPSGDSL as DPSGDSL
    from flwr_splitmix.strategies.ushape_defences import DPForwardSL as DPForwardSL
    from flwr_splitmix.strategies.ushape_defences import NoPeekSL as NoPeekSL
    from flwr_splitmix.strategies.ushape_defences import SnDSL as SnDSL
    from flwr_splitmix.strategies.vanilla_cutmix_sl import VanillaCutMixSFL as VanillaCutMixSFL
    from flwr_splitmix.strategies.vanilla_cutmix_sl import VanillaCutMixSL as VanillaCutMixSL
else:
    __all__ = [
        *_SHAPES,
        "Pace",
        "SplitStrategy",
        "UShapeStrategy",
        "central_evaluation",
        *methods.strategy_names(),
    ]
