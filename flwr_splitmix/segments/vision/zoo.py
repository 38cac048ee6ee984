"""timm's models: their classes by name, and their construction."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any

import torch
from torch import nn

from flwr_splitmix.extras import needed_for
from flwr_splitmix.segments.vision.split_model import Request

CUTTABLE = (
    "vit_*", "deit*", "eva*", "beit*", "pit_*", "swin*", "vgg*", "resnet*", "regnet*", "convnext*",
    "efficientnet*", "mobilenet*", "mobilevit*", "densenet*", "ghostnet*", "fastvit*", "hrnet*",
    "inception*", "mixer_*", "cait_*", "xcit_*", "levit*", "efficientvit*", "maxvit*",
)  # fmt: skip
"""Patterns of names of models that can be cut; others of the same classes can, too."""


EXAMPLES = (
    "vit_tiny_patch16_224, pit_ti_224, swin_tiny_patch4_window7_224, vgg16, resnet18, "
    "convnext_atto, mobilenetv3_small_100, and lenet5"
)
"""Names of models that can be cut, for error messages."""


def import_timm() -> Any:
    """Import timm, but not Weights & Biases, which timm would import if it is installed.

    Only timm's training script needs it, and the import takes more than a second.
    """
    if "timm" in sys.modules or "wandb" in sys.modules:
        import timm

        return timm
    sys.modules["wandb"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        import timm
    finally:
        del sys.modules["wandb"]
    return timm


def family_of(name: str) -> type[nn.Module]:
    """Return the class of a timm model, from the annotation of its entry point.

    Without one, it is the only class of the entry point's module that has `forward_features`; with
    several, the class of the model, built without weights.

    Raises
    ------
    ValueError
        If timm has no such model; the message names models with similar names.
    """
    with needed_for(f"the model {name!r}"):
        timm = import_timm()
        import timm.models as zoo

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, [*timm.list_models(list(CUTTABLE)), "lenet5"], n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else "."
        raise ValueError(
            f"timm has no model {name!r}{hint} Allowed are timm's {', '.join(CUTTABLE)}, and lenet5"
        )
    entry = timm.models.model_entrypoint(name)
    annotation = getattr(entry, "__annotations__", {}).get("return", nn.Module)
    family = getattr(zoo, annotation, None) if isinstance(annotation, str) else annotation
    if isinstance(family, type) and family is not nn.Module:
        return family
    defined = [
        kind
        for kind in vars(sys.modules[entry.__module__]).values()
        if isinstance(kind, type)
        and kind.__module__ == entry.__module__
        and hasattr(kind, "forward_features")
    ]
    if len(defined) == 1:
        return defined[0]
    with torch.device("meta"):
        return type(timm.create_model(name))


def pretrained_normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the means and standard deviations per channel that timm's pretrained weights expect.

    They are of pixel values scaled to 0..1. None if timm has no configuration of such weights.
    """
    with needed_for(f"the model {name!r}"):
        timm = import_timm()
    if not timm.is_model(name):
        return None
    described = timm.get_pretrained_cfg(name)
    return None if described is None else (tuple(described.mean), tuple(described.std))


def create(request: Request, family: type[nn.Module], **options: Any) -> Any:
    """Build a timm model that computes like `family`.

    Raises
    ------
    ValueError
        If timm cannot build the model with these sizes, or the model has another forward pass, so
        that its stages are not the family's.
    """
    try:
        model = import_timm().create_model(
            request.name,
            num_classes=request.num_classes,
            in_chans=request.channels,
            **request.options,
            **options,
        )
    except AssertionError as error:  # most of timm's say nothing
        sizes = f"image_size {request.image_size} and patch_size {request.patch_size}"
        raise ValueError(
            f"timm cannot build {request.name} with {sizes}{f': {error}' if str(error) else ''}; "
            "other sizes may do (a hybrid's patch_size counts pixels of its backbone's map: try "
            f"patch_size=1), or another model such as {EXAMPLES}"
        ) from error
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in {*request.options, *options}:
            raise
        hint = " (the cut's name is cut_at)" if unknown[1] == "cut" else ""
        raise ValueError(
            f"timm's {request.name} has no option {unknown[1]!r}{hint}; available: those of "
            "split_vision_model, and what this model takes from timm.create_model"
        ) from error
    expected: Any = family
    if getattr(type(model), "forward_features", None) is not expected.forward_features:
        raise ValueError(
            cannot_cut(request.name, f"it computes otherwise than timm's {family.__name__}")
        )
    return model


def cannot_cut(name: str, why: str) -> str:
    """Return the error message for a model that cannot be cut, with the remedies."""
    return (
        f"{name} cannot be cut: {why}; use a model such as {EXAMPLES}; any two modules of "
        "your own will do, too (SplitClient and a strategy take them)"
    )
