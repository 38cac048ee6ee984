"""The two segments of a cut timm model, reassembled as timm's own model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.vision.class_attention import class_attention
from flwr_splitmix.segments.vision.layouts import layout_of
from flwr_splitmix.segments.vision.split_model import SplitModel
from flwr_splitmix.segments.vision.vgg import FULL_SIZE
from flwr_splitmix.segments.vision.vit import plain_transformer
from flwr_splitmix.segments.vision.zoo import family_of

_TRANSFORMER = (
    (r"^embedding\.patch_embed\.", "patch_embed."),
    (r"^(embedding|positions)\.pos_embed$", "pos_embed"),
    (r"^prefix\.norm_pre\.", "norm_pre."),
    (r"^head\.norm\.", "norm."),
    (r"^head\.model\.", ""),
)
_RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(
        ("VisionTransformer", "Eva", "Beit"),
        ((r"^block_(\d+)\.(block\.)?", r"blocks.\1."), *_TRANSFORMER),
    ),
    "PoolingVisionTransformer": (
        (r"^embedding\.patch_embed\.embed\.", "patch_embed."),
        (r"^transformer_(\d+)\.", r"transformers.\1."),
        (r"^prefix\.tokens$", "cls_token"),
        *_TRANSFORMER,
    ),
    **dict.fromkeys(
        ("Cait", "Xcit"),
        (
            (r"^block_(\d+)\.(block\.)?", r"blocks.\1."),
            (r"^embedding\.embed\.(embed\.)?", "patch_embed."),
            (r"^(embedding\.)?positions\.(encoding\.)?", "pos_embed."),
            (r"^pos_embed\.pos_embed$", "pos_embed"),
            *_TRANSFORMER,
        ),
    ),
    "VGG": ((r"^features_(\d+)\.", r"features.\1."),),
}
"""For each family of timm, patterns of our names and their replacements by timm's names."""

_TOLERANCE = 1e-4
"""Relative and absolute tolerance of logits; two layouts of the same float32 sums differ less."""


@dataclass(frozen=True)
class WholeModel:
    """A model in timm's form.

    Attributes
    ----------
    module
        timm's module, in evaluation mode, with the segments' weights.
    name, arguments
        Arguments with which `timm.create_model` makes such a module; plain values.
    """

    module: nn.Module
    name: str
    arguments: dict[str, Any]


def whole_model(segments: SplitModel, name: str, **arguments: Any) -> WholeModel:
    """Put the weights of two segments into the timm model from which they were cut.

    Parameters
    ----------
    segments
        Segments from `split_vision_model`, with any weights.
    name, **arguments
        The arguments with which it was called.

    Raises
    ------
    ValueError
        If timm has no such model: LeNet-5, a VGG for small images, which has another classifier,
        or shuffled edges; or if its weights or its outputs are not the segments'. The message says
        why.
    """
    import timm
    from timm.models.vgg import VGG

    if hasattr(segments.lower, "edge"):
        raise ValueError("its edge shuffles tokens, which no model of timm does")
    if name == "lenet5":
        raise ValueError("timm has no lenet5")
    if issubclass(family_of(name), VGG) and arguments.get("image_size", 32) < FULL_SIZE:
        raise ValueError(f"at this image size its classifier is not that of timm's {name}")
    plain = {
        key: value
        for key, value in arguments.items()
        if key not in ("cut_at", "cell", "seed", "positions", "pretrained")
    }
    options = _timm_arguments(name, **plain)
    with seeded_draws(torch.device("cpu"), 0):
        module: Any = timm.create_model(name, **options).eval()
    state = module.state_dict()
    weights = _named_as_in(module, segments)
    if weights.keys() != state.keys() or any(weights[k].shape != state[k].shape for k in state):
        raise ValueError(f"its segments have other weights than timm's {name}")
    module.load_state_dict(weights)
    _check_agreement(module, segments, name)
    return WholeModel(module, name, options)


def _timm_arguments(
    name: str,
    *,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 32,
    patch_size: int = 4,
    depth: int | None = 6,
    **timm_options: Any,
) -> dict[str, Any]:
    """Return the arguments with which `timm.create_model` makes the model that was cut."""
    from timm.models.pit import PoolingVisionTransformer

    family = family_of(name)
    plain = plain_transformer(family) is not None or class_attention(family) is not None
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels, **timm_options}
    layout = layout_of(family)
    if layout is not None:
        options |= layout.sizes(image_size, patch_size)
    elif plain or issubclass(family, PoolingVisionTransformer):
        options |= {"img_size": image_size, "patch_size": patch_size}
    if issubclass(family, PoolingVisionTransformer):
        options.setdefault("stride", patch_size)
    elif plain and depth is not None:
        options["depth"] = depth
    return options


def _named_as_in(module: Any, segments: SplitModel) -> dict[str, Tensor]:
    """Return the weights of both segments by timm's names."""
    from timm.models.pit import PoolingVisionTransformer

    timm_name = _naming_of(type(module))
    pit = isinstance(module, PoolingVisionTransformer)
    state = {**segments.lower.state_dict(), **segments.upper.state_dict()}
    tokens, prefix = state.pop("prefix.tokens", None), state.pop("prefix.pos_embed", None)
    if pit:
        state["prefix.tokens"], tokens = tokens, None
    weights = {timm_name(name): weight for name, weight in state.items()}
    frequencies = [weights.pop(name) for name in list(weights) if name.endswith(".rope.freqs")]
    if frequencies:  # in the order of the blocks
        weights["rope.freqs"] = torch.cat(frequencies, dim=1)
    if tokens is not None:
        weights |= _prefix_tokens(module, tokens)
    if "pos_embed" in weights and module.pos_embed is not None:
        patches = weights["pos_embed"]
        if pit:  # a map
            patches = patches.transpose(1, 2).reshape(module.pos_embed.shape)
        elif prefix is not None:
            patches = torch.cat([prefix, patches], dim=1)
        weights["pos_embed"] = patches
    return weights


def _naming_of(family: type[nn.Module]) -> Callable[[str], str]:
    """Return the function that turns our names of a family's weights into timm's."""
    if (layout := layout_of(family)) is not None:
        return layout.timm_name
    rules = next(_RENAMED[kind.__name__] for kind in family.__mro__ if kind.__name__ in _RENAMED)
    return partial(_renamed, rules)


def _renamed(rules: Sequence[tuple[str, str]], name: str) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name, count=1)
    return name


def _prefix_tokens(module: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Return the class, distillation and register tokens among `tokens` (1, p, d), by name."""
    named, start = {}, 0
    for name in ("cls_token", "dist_token", "reg_token"):
        parameter = getattr(module, name, None)
        if parameter is not None:
            named[name] = tokens[:, start : start + parameter.shape[1]]
            start += parameter.shape[1]
    return named


@torch.no_grad()
def _check_agreement(module: nn.Module, segments: SplitModel, name: str) -> None:
    """Raise ValueError unless module and segments return the same logits for random images."""
    lower, upper = segments
    modes = {part: part.training for segment in segments for part in segment.modules()}
    for segment in segments:
        segment.eval()
    images = torch.randn(2, *lower.input_shape, generator=torch.Generator().manual_seed(0))
    logits, expected = module(images), upper(lower(images))
    for part, training in modes.items():
        part.training = training
    if not torch.allclose(logits, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError(f"timm's {name} computes otherwise than its segments do")
