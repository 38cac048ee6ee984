"""Cuts of timm's CNNs and Swin transformers: a stem, stages one after another, and a top."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.segments.vision.feature_maps import MapToTokens, open_cnn
from flwr_splitmix.segments.vision.layouts import (
    DROPOUT,
    GRID,
    OWN_HEAD,
    OWN_REST,
    TOKENS,
    Layout,
)
from flwr_splitmix.segments.vision.split_model import Cuttable, Request, Stage
from flwr_splitmix.segments.vision.tokens import ClassifierHead
from flwr_splitmix.segments.vision.zoo import cannot_cut, create

_DEFAULT_REDUCTION = 4
"""Image side divided by the map's side at the default cut."""


def open_staged(request: Request, family: type[nn.Module], layout: Layout) -> Cuttable:
    """Build a model, cut by default after its first stage at a quarter of the image's side.

    Raises
    ------
    ValueError
        If timm cannot build the model, or it computes otherwise than its family.
    """
    if layout.patched:
        request.check_patches()
    model = create(request, family, **layout.sizes(request.image_size, request.patch_size))
    names = layout.stages_of(model)
    slot_free = layout.slot_free(model)  # before the model is taken apart
    stages: list[Stage] = [
        ("stem", _in_sequence([_part(model, name) for name in layout.stem])),
        *((name.replace(".", "_"), _part(model, name)) for name in names),
    ]
    cuts = {name: i + 1 for i, name in enumerate(["stem", *names])}
    default = _default(model, names)
    weights = {*model.parameters(), *model.buffers()}
    if layout.top == (OWN_REST,):
        stages.append((OWN_REST, _rest(model, [*layout.stem, *names])))
    else:
        stages += [(name.replace(".", "_"), _part(model, name)) for name in layout.top]
    stage_modules = nn.ModuleList(module for _, module in stages)
    if {*stage_modules.parameters(), *stage_modules.buffers()} != weights:
        raise ValueError(
            cannot_cut(request.name, f"it has a part that others of timm's {family.__name__} lack")
        )
    return open_cnn(
        request, stages, cuts, default, channels_last=layout.channels_last, slot_free=slot_free
    )


def _own_head(model: Any) -> nn.Module:
    """Return the `forward_head` of a model, which cannot be used otherwise afterwards."""
    for name in [name for name, _ in model.named_children()]:
        if not name.startswith(("head", "global_pool")):
            setattr(model, name, nn.Identity())
    model.norm = nn.Identity()  # a layout names it in front of the head, if there is one
    return ClassifierHead(model)


class RestOfModel(nn.Module):
    """timm's own forward pass of a model without the parts below it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, maps: Tensor) -> Tensor:  # noqa: D102
        logits: Tensor = self.model(maps)
        return logits


class _PassThrough(nn.Module):
    """Place of a part that is below: returns its first input.

    An nn.Identity would not do: it takes no other inputs, and there are models that stop at one.
    """

    def forward(self, maps: Tensor, *_: Any, **__: Any) -> Tensor:
        return maps


class _PassedWithGrid(nn.Module):
    """Place of an embedding that also returns the size of the grid of tokens, which is square."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[int, int]]:
        side = math.isqrt(tokens.shape[1])
        return tokens, (side, side)


class _Tokens(nn.Module):
    """Keeps the tokens of an embedding that also returns the size of their grid."""

    def forward(self, embedded: tuple[Tensor, Any]) -> Tensor:
        return embedded[0]


def _rest(model: Any, below: list[str]) -> nn.Module:
    """Return a model that computes what follows the parts `below`, which are taken from it."""
    passed = _PassedWithGrid if GRID in below else _PassThrough
    for name in below:
        if name != GRID:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, passed())
    return RestOfModel(model)


def _part(model: Any, name: str) -> nn.Module:
    if name == DROPOUT:
        return nn.Dropout(float(getattr(model, "drop_rate", 0.0)))
    if name == GRID:
        return _Tokens()
    if name == TOKENS:
        return nn.Identity() if getattr(model, "use_conv", False) else MapToTokens()
    part: nn.Module = _own_head(model) if name == OWN_HEAD else model.get_submodule(name)
    return part


def _in_sequence(modules: list[nn.Module]) -> nn.Module:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def _default(model: Any, names: list[str]) -> str:
    at = {described["module"]: described["reduction"] for described in model.feature_info}
    first = names[0] if names else "stem"
    return next((name for name in names if at.get(name) == _DEFAULT_REDUCTION), first)
