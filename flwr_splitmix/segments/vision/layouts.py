"""The layouts of timm's families: a stem, stages one after another, and a top, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from flwr_splitmix.segments.vision.feature_maps import SlotFree

DROPOUT = "drop"
"""Place in a top of the dropout that timm applies by a function."""

OWN_HEAD = "own_head"
"""Place in a top of timm's own `forward_head`, where it computes more than its modules do."""

OWN_REST = "own_rest"
"""Top of a model whose parts above the stages do not run in sequence: timm's own forward pass."""

TOKENS = "tokens"
"""Place in a stem where timm turns a map into tokens (b, N, d), unless the model keeps maps."""

GRID = "grid"
"""Place in a stem, after an embedding that returns tokens and their grid's size: keeps the tokens.

The grid is that of a square image.
"""

EVERY_STAGE = r"(stages|layers|levels|blocks)\..*"
"""Slots known in all stages: by windows of attention, positions in them, or layers over slots."""

BIASES = r".*\.attention_biases"
"""Slots known where attention adds a bias by the places of two patches."""


@dataclass(frozen=True)
class Layout:
    """The modules of a family, by timm's names, in the order in which they run.

    Parameters
    ----------
    stem, top
        Modules before and after the stages.
    stages
        Pattern of the stages' names: `layer1`, ... or `blocks.0`, ...
    patched
        Whether it is built for one size of images and of patches, as transformers are.
    sized
        Whether it is built for one size of images.
    channels_last
        Whether its maps are (b, H, W, C).
    slots
        Pattern of the names of weights whose stages know the slots of patches: they add position
        embeddings or biases, attend within windows, or mix over slots. Convolutions, poolings and
        attention without positions do not, though zero padding shows the borders.
    """

    stem: tuple[str, ...]
    stages: str
    top: tuple[str, ...]
    patched: bool = False
    sized: bool = False
    channels_last: bool = False
    slots: str = "(?!)"

    def sizes(self, image_size: int, patch_size: int) -> dict[str, int]:
        """Return the sizes that timm's model is built for, by timm's names."""
        if self.patched:
            return {"img_size": image_size, "patch_size": patch_size}
        return {"img_size": image_size} if self.sized else {}

    def stages_of(self, model: nn.Module) -> list[str]:
        """Return the names of a model's stages, in order."""
        return [name for name, _ in model.named_modules() if re.fullmatch(self.stages, name)]

    def slot_free(self, model: nn.Module) -> SlotFree:
        """Return the last cut of a model below which no layer knows the slots of patches."""
        tensors = (*model.named_parameters(), *model.named_buffers())
        slot_names = [name for name, _ in tensors if re.fullmatch(self.slots, name)]
        free = SlotFree("", 0)
        for number, cut in enumerate(["stem", *self.stages_of(model)], start=1):
            parts = self.stem if cut == "stem" else (cut,)
            if any(name.startswith(f"{part}.") for name in slot_names for part in parts):
                break
            free = SlotFree(cut, number)
        return free

    def timm_name(self, weight: str) -> str:
        """Return timm's name of a segment's weight."""
        part, _, rest = weight.partition(".")
        if part == "stem":
            index, _, inner_name = rest.partition(".")
            several = len(self.stem) > 1
            return f"{self.stem[int(index)]}.{inner_name}" if several else f"{self.stem[0]}.{rest}"
        if part in (OWN_HEAD, OWN_REST):
            return rest.removeprefix("model.")
        names = (part, *(part[: m.start()] + "." + part[m.end() :] for m in re.finditer("_", part)))
        matches = (name for name in names if name in self.top or re.fullmatch(self.stages, name))
        return f"{next(matches, part)}.{rest}"


def _of_stages(*top: str) -> Layout:
    return Layout(("stem",), r"stages\.\d+", top)


def _cut_early(*stem: str, stages: str = "(?!)", **options: Any) -> Layout:
    """Return the layout of a family that is cut after its stem, or after a few stages."""
    return Layout(stem, stages, (OWN_REST,), **options)


LAYOUTS = {
    "ResNet": Layout(
        ("conv1", "bn1", "act1", "maxpool"), r"layer\d+", ("global_pool", DROPOUT, "fc")
    ),
    "ResNetV2": _of_stages("norm", "head"),
    "RegNet": Layout(("stem",), r"s\d+", ("final_conv", "head")),
    "EfficientNet": Layout(
        ("conv_stem", "bn1"),
        r"blocks\.\d+",
        ("conv_head", "bn2", "global_pool", DROPOUT, "classifier"),
    ),
    "MobileNetV3": Layout(
        ("conv_stem", "bn1"),
        r"blocks\.\d+",
        ("global_pool", "conv_head", "norm_head", "act2", "flatten", DROPOUT, "classifier"),
    ),
    "ByobNet": replace(
        _of_stages("final_conv", "head"),
        slots=r".*\.(self_attn|conv_p)\..*",  # BoTNet, HaloNet, ...
    ),
    "ConvNeXt": _of_stages("norm_pre", "head"),
    **dict.fromkeys(
        ("CspNet", "CspNext", "VovNet", "HighPerfGpuNet", "MetaNeXt"), _of_stages("head")
    ),
    **dict.fromkeys(("EfficientVit", "EfficientVitLarge"), _of_stages("head")),
    "EdgeNeXt": replace(_of_stages("norm_pre", "head"), slots=r".*\.pos_embd\..*"),
    "DaVit": replace(_of_stages("norm_pre", "head"), slots=EVERY_STAGE),
    **dict.fromkeys(("MetaFormer", "RepVit", "IFormer"), _of_stages(OWN_HEAD)),
    "SwiftFormer": _of_stages("norm", OWN_HEAD),
    "EfficientFormer": replace(_of_stages("norm", OWN_HEAD), slots=BIASES),
    "EfficientFormerV2": replace(_of_stages("norm", OWN_HEAD), sized=True, slots=BIASES),
    "NextViT": _of_stages("norm", "head"),
    "CPUBone": _of_stages("head"),
    "MambaOut": replace(_of_stages("head"), channels_last=True),
    "Sequencer2d": replace(_of_stages("norm", "head"), channels_last=True, slots=EVERY_STAGE),
    "GlobalContextVit": replace(_of_stages("head"), sized=True, slots=EVERY_STAGE),
    "LCNetV2": _of_stages("global_pool", "conv_head", "act2", "flatten", DROPOUT, "classifier"),
    "LowFormer": _of_stages(
        "in_conv", "global_pool", "flatten", "pre_classifier", DROPOUT, "classifier"
    ),
    **dict.fromkeys(
        ("GhostNet", "RepGhostNet"),
        Layout(
            ("conv_stem", "bn1", "act1"),
            r"blocks\.\d+",
            ("global_pool", "conv_head", "act2", "flatten", DROPOUT, "classifier"),
        ),
    ),
    "NormFreeNet": _of_stages("final_conv", "final_act", "head"),
    "FastVit": _of_stages("final_conv", "head"),
    "StarNet": _of_stages("norm", "global_pool", "flatten", DROPOUT, "head"),
    "FasterNet": Layout(
        ("patch_embed",),
        r"stages\.\d+",
        ("global_pool", "conv_head", "act", "flatten", DROPOUT, "classifier"),
    ),
    "RDNet": Layout(("stem",), r"dense_stages\.\d+", ("norm_pre", "head")),
    "RexNet": Layout(("stem",), r"features\.\d+", ("head",)),
    "FocalNet": Layout(("stem",), r"layers\.\d+", ("norm", "head")),
    "Xception": Layout(
        ("conv1", "bn1", "act1", "conv2", "bn2", "act2"),
        r"block\d+",
        ("conv3", "bn3", "act3", "conv4", "bn4", "act4", "global_pool", DROPOUT, "fc"),
    ),
    "InceptionV3": Layout(
        ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Pool1"),
        r"Conv2d_3b_1x1|Conv2d_4a_3x3|Pool2|Mixed_\w+",
        ("global_pool", "head_drop", "fc"),
    ),
    "InceptionV4": Layout(
        ("features.0", "features.1", "features.2"),
        r"features\.([3-9]|\d\d)",
        ("global_pool", "head_drop", "last_linear"),
    ),
    "InceptionResnetV2": Layout(
        ("conv2d_1a", "conv2d_2a", "conv2d_2b", "maxpool_3a"),
        r"conv2d_3b|conv2d_4a|maxpool_5a|mixed_\w+|repeat(_\d)?|block8",
        ("conv2d_7b", "global_pool", "head_drop", "classif"),
    ),
    "XceptionAligned": Layout(("stem",), r"blocks\.\d+", ("act", "head")),
    "ConvMixer": Layout(("stem",), r"blocks\.\d+", ("global_pool", "head_drop", "head")),
    "SENet": Layout(("layer0", "pool0"), r"layer[1-4]", ("global_pool", DROPOUT, "last_linear")),
    "DLA": Layout(("base_layer",), r"level\d", ("global_pool", "head_drop", "fc", "flatten")),
    "DenseNet": Layout(
        ("features.conv0", "features.norm0", "features.pool0"),
        r"features\.(denseblock|transition)\d+",
        ("features.norm5", "global_pool", "head_drop", "classifier"),
    ),
    "MaxxVit": Layout(
        ("stem",), r"stages\.\d+", ("norm", "head"), sized=True, slots=r".*\.attn(_\w+)?\..*"
    ),
    "TinyVit": Layout(("patch_embed",), r"stages\.\d+", ("head",), slots=BIASES),
    "PyramidVisionTransformerV2": Layout(("patch_embed",), r"stages\.\d+", (OWN_HEAD,)),
    "TResNet": Layout(("body.s2d", "body.conv1"), r"body\.layer\d", ("head",)),
    "EfficientVitMsra": Layout(
        ("patch_embed",), r"stages\.\d+", ("global_pool", "head"), sized=True, slots=BIASES
    ),
    "SHViT": Layout(("patch_embed",), r"stages\.\d+", ("global_pool", "flatten", DROPOUT, "head")),
    **dict.fromkeys(
        ("Levit", "LevitDistilled"),
        Layout(("stem", TOKENS), r"stages\.\d+", (OWN_HEAD,), sized=True, slots=EVERY_STAGE),
    ),
    "MlpMixer": Layout(
        ("stem",), r"blocks\.\d+", ("norm", OWN_HEAD), sized=True, slots=EVERY_STAGE
    ),
    **dict.fromkeys(
        ("SwinTransformer", "SwinTransformerV2"),
        Layout(
            ("patch_embed",),
            r"layers\.\d+",
            ("norm", "head"),
            patched=True,
            channels_last=True,
            slots=EVERY_STAGE,
        ),
    ),
    "HighResolutionNet": _cut_early(
        "conv1", "bn1", "act1", "conv2", "bn2", "act2", stages="layer1"
    ),
    "DPN": _cut_early("features.conv1_1"),
    "SelecSls": _cut_early("stem"),
    "NASNetALarge": _cut_early("conv0"),
    "PNASNet5Large": _cut_early("conv_0"),
    "Visformer": _cut_early("stem", sized=True),
    "Nest": _cut_early("patch_embed", stages=r"levels\.\d+", sized=True, slots=EVERY_STAGE),
    "VOLO": _cut_early("patch_embed", sized=True),
    **dict.fromkeys(("VisionTransformerRelPos", "ConVit"), _cut_early("patch_embed", patched=True)),
    "VisionTransformerSAM": _cut_early("patch_embed", patched=True, channels_last=True),
    "Twins": _cut_early("patch_embeds.0", GRID, patched=True),
    "MultiScaleVit": _cut_early("patch_embed", GRID, sized=True),
    "Hiera": _cut_early("patch_embed", sized=True),
    "EfficientViM": _cut_early("patch_embed"),
    "SwinTransformerV2Cr": Layout(
        ("patch_embed",), r"stages\.\d+", ("head",), patched=True, slots=EVERY_STAGE
    ),
}
"""Layouts by the names of timm's classes."""


def layout_of(family: type[nn.Module]) -> Layout | None:
    """Return the layout of a class of timm or of its nearest base; None if there is none."""
    layouts = (LAYOUTS.get(kind.__name__) for kind in family.__mro__)
    return next((layout for layout in layouts if layout is not None), None)
