"""Split learning as Flower strategies: one file a method, with and without averaging."""

from flwr_splitmix.server.evaluation.central import central_evaluation
from flwr_splitmix.strategies.cutmix_sl import CutMixSFL, CutMixSL
from flwr_splitmix.strategies.cutout_sl import CutoutSFL, CutoutSL
from flwr_splitmix.strategies.dp_sl import (
    DPSFL,
    DPSL,
    DPCutMixSFL,
    DPCutMixSL,
    DPMixSFL,
    DPMixSL,
)
from flwr_splitmix.strategies.input_level_sl import (
    InputCutMixSFL,
    InputCutMixSL,
    InputCutoutSFL,
    InputCutoutSL,
    InputMixupSFL,
    InputMixupSL,
    InputVanillaCutMixSFL,
    InputVanillaCutMixSL,
)
from flwr_splitmix.strategies.mixguard import MixGuard, NaiveMixSL
from flwr_splitmix.strategies.mixup_sl import MixupSFL, MixupSL
from flwr_splitmix.strategies.psl import PSL, SFL
from flwr_splitmix.strategies.shuffled_edge_sl import (
    BatchShuffleSL,
    PatchShuffleSL,
    SpectralShuffleSL,
)
from flwr_splitmix.strategies.shuffled_sl import (
    ShuffledCutMixSFL,
    ShuffledCutMixSL,
    ShuffledPSL,
    ShuffledSFL,
)
from flwr_splitmix.strategies.split import SplitStrategy
from flwr_splitmix.strategies.u_split_sl import USplitFL, USplitSL
from flwr_splitmix.strategies.ushape import UShapeStrategy
from flwr_splitmix.strategies.vanilla_cutmix_sl import VanillaCutMixSFL, VanillaCutMixSL

STRATEGIES: dict[str, type[SplitStrategy]] = {
    kind.__name__: kind
    for kind in (
        PSL,
        SFL,
        MixupSL,
        MixupSFL,
        CutoutSL,
        CutoutSFL,
        VanillaCutMixSL,
        VanillaCutMixSFL,
        CutMixSL,
        CutMixSFL,
        ShuffledPSL,
        ShuffledSFL,
        ShuffledCutMixSL,
        ShuffledCutMixSFL,
        InputMixupSL,
        InputMixupSFL,
        InputCutoutSL,
        InputCutoutSFL,
        InputVanillaCutMixSL,
        InputVanillaCutMixSFL,
        InputCutMixSL,
        InputCutMixSFL,
        PatchShuffleSL,
        BatchShuffleSL,
        SpectralShuffleSL,
        DPSL,
        DPSFL,
        DPMixSL,
        DPMixSFL,
        DPCutMixSL,
        DPCutMixSFL,
    )
}
"""All strategies of the L shape by name: what an app offers and the laws run over."""

USHAPE_STRATEGIES: dict[str, type[UShapeStrategy]] = {
    kind.__name__: kind for kind in (USplitSL, USplitFL, NaiveMixSL, MixGuard)
}
"""All strategies of the U shape by name."""

__all__ = [
    "DPSFL",
    "DPSL",
    "PSL",
    "SFL",
    "STRATEGIES",
    "USHAPE_STRATEGIES",
    "BatchShuffleSL",
    "CutMixSFL",
    "CutMixSL",
    "CutoutSFL",
    "CutoutSL",
    "DPCutMixSFL",
    "DPCutMixSL",
    "DPMixSFL",
    "DPMixSL",
    "InputCutMixSFL",
    "InputCutMixSL",
    "InputCutoutSFL",
    "InputCutoutSL",
    "InputMixupSFL",
    "InputMixupSL",
    "InputVanillaCutMixSFL",
    "InputVanillaCutMixSL",
    "MixGuard",
    "MixupSFL",
    "MixupSL",
    "NaiveMixSL",
    "PatchShuffleSL",
    "ShuffledCutMixSFL",
    "ShuffledCutMixSL",
    "ShuffledPSL",
    "ShuffledSFL",
    "SpectralShuffleSL",
    "SplitStrategy",
    "UShapeStrategy",
    "USplitFL",
    "USplitSL",
    "VanillaCutMixSFL",
    "VanillaCutMixSL",
    "central_evaluation",
]
