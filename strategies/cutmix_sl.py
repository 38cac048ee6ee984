"""CutMixSL: Smashed Patch CutMix across clients, lower segments stay with them."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.masks import Rounding
from flwr_splitmix.mixers.patch_cutmix import Gradient, Regroup
from flwr_splitmix.strategies.options import Options
from flwr_splitmix.strategies.strategy import SplitStrategy


class CutMixOptions(Options, total=False):
    """Options of the CutMix mixer besides `k` and `alpha`; see `PatchCutMix`."""

    rounding: Rounding
    min_patches: int
    gradient: Gradient
    regroup: Regroup
    k_times: bool
    mask_per_sample: bool


class CutMixSL(SplitStrategy):
    """Split learning on CutMix data: each client sends some patches, the others fill the gaps.

    Parameters
    ----------
    upper
        The upper segment.
    k, alpha
        Clients in a mixing group; concentration of the mixing ratios (None: as even as possible).
    **options
        See `PatchCutMix` and `SplitStrategy`.

    Source: CutMixSL, algorithm 2.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        k: int = 2,
        alpha: float | None = 6.0,
        **options: Unpack[CutMixOptions],
    ) -> None:
        mixer, rest = cutmix(k, alpha, options)
        super().__init__(upper, mixer=mixer, **rest)


def cutmix(k: int, alpha: float | None, options: CutMixOptions) -> tuple[PatchCutMix, Options]:
    """Make the mixer from its options; the others are the strategy's."""
    own = {name: options[name] for name in _MIXER_OPTIONS if name in options}  # type: ignore[literal-required]
    rest = {name: value for name, value in options.items() if name not in _MIXER_OPTIONS}
    return PatchCutMix(k, alpha, **own), rest  # type: ignore[return-value]


_MIXER_OPTIONS = CutMixOptions.__annotations__.keys() - Options.__annotations__.keys()
