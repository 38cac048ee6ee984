"""Cuts of timm's CNNs and Swin transformers: a stem, stages one after another, and a top."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from flwr_splitmix.segments.vision.feature_maps import open_cnn
from flwr_splitmix.segments.vision.split_model import Cuttable, Request, Stage
from flwr_splitmix.segments.vision.zoo import create

_DROPOUT = "drop"
"""Place in a top of the dropout that timm applies by a function."""

_DEFAULT_REDUCTION = 4
"""Image side divided by the map's side at the default cut."""


@dataclass(frozen=True)
class Layout:
    """The modules of a family, by timm's names, in the order in which they run.

    Parameters
    ----------
    stem, top
        Modules before and after the stages.
    stages
        Pattern of the stages' names: `layer1`, ... or `blocks.0`, ...
    windows
        Whether it is a transformer with windows of patches: it is built for one size of images and
        patches, and its maps are (b, H, W, C).
    """

    stem: tuple[str, ...]
    stages: str
    top: tuple[str, ...]
    windows: bool = False

    def stages_of(self, model: nn.Module) -> list[str]:
        """Return the names of a model's stages, in order."""
        return [name for name, _ in model.named_modules() if re.fullmatch(self.stages, name)]

    def timm_name(self, weight: str) -> str:
        """Return timm's name of a segment's weight."""
        part, _, rest = weight.partition(".")
        if part == "stem":
            index, _, own = rest.partition(".")
            several = len(self.stem) > 1
            return f"{self.stem[int(index)]}.{own}" if several else f"{self.stem[0]}.{rest}"
        dotted = part.replace("_", ".")
        return f"{dotted if re.fullmatch(self.stages, dotted) else part}.{rest}"


LAYOUTS = {
    "ResNet": Layout(
        ("conv1", "bn1", "act1", "maxpool"), r"layer\d+", ("global_pool", _DROPOUT, "fc")
    ),
    "ResNetV2": Layout(("stem",), r"stages\.\d+", ("norm", "head")),
    "RegNet": Layout(("stem",), r"s\d+", ("final_conv", "head")),
    "EfficientNet": Layout(
        ("conv_stem", "bn1"),
        r"blocks\.\d+",
        ("conv_head", "bn2", "global_pool", _DROPOUT, "classifier"),
    ),
    "MobileNetV3": Layout(
        ("conv_stem", "bn1"),
        r"blocks\.\d+",
        ("global_pool", "conv_head", "norm_head", "act2", "flatten", _DROPOUT, "classifier"),
    ),
    "ByobNet": Layout(("stem",), r"stages\.\d+", ("final_conv", "head")),
    "ConvNeXt": Layout(("stem",), r"stages\.\d+", ("norm_pre", "head")),
    "SwinTransformer": Layout(("patch_embed",), r"layers\.\d+", ("norm", "head"), windows=True),
    "SwinTransformerV2": Layout(("patch_embed",), r"layers\.\d+", ("norm", "head"), windows=True),
}
"""Layouts by the names of timm's classes."""


def layout_of(family: type[nn.Module]) -> Layout | None:
    """Return the layout of a class of timm or of its nearest base; None if there is none."""
    layouts = (LAYOUTS.get(kind.__name__) for kind in family.__mro__)
    return next((layout for layout in layouts if layout is not None), None)


def open_staged(request: Request, family: type[nn.Module], layout: Layout) -> Cuttable:
    """Build a model, cut by default after its first stage at a quarter of the image's side.

    Raises
    ------
    ValueError
        If timm cannot build the model, or it computes otherwise than its family.
    """
    sizes = {"img_size": request.image_size, "patch_size": request.patch_size}
    if layout.windows:
        request.check_patches()
    model = create(request, family, **(sizes if layout.windows else {}))
    names = layout.stages_of(model)
    stages: list[Stage] = [
        ("stem", _in_sequence([getattr(model, name) for name in layout.stem])),
        *((name.replace(".", "_"), model.get_submodule(name)) for name in names),
    ]
    cuts = {name: i + 1 for i, name in enumerate(["stem", *names])}
    drop = nn.Dropout(float(model.drop_rate)) if hasattr(model, "drop_rate") else nn.Identity()
    stages += [(name, drop if name == _DROPOUT else getattr(model, name)) for name in layout.top]
    default = _default(model, names)
    return open_cnn(request, stages, cuts, default, channels_last=layout.windows)


def _in_sequence(modules: list[nn.Module]) -> nn.Module:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def _default(model: Any, names: list[str]) -> str:
    at = {described["module"]: described["reduction"] for described in model.feature_info}
    return next((name for name in names if at.get(name) == _DEFAULT_REDUCTION), names[0])
