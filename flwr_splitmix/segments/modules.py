"""Modules as segments: which can be moved, sent and trained, and which leave their input alone."""

from __future__ import annotations

import copy

from torch import nn

from flwr_splitmix.values import takes
from flwr_splitmix.words import with_article

BATCH_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d,
)  # fmt: skip
"""torch's layers of batch normalisation."""

_INSTANCE_NORMS = (
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d,
)  # fmt: skip
"""torch's layers of instance normalisation, which may measure running statistics, too."""


def check_module(name: str, segment: object) -> None:
    """Refuse what is not a torch module, or has weights without values or that cannot be trained.

    Parameters
    ----------
    name
        Name of the argument, with which the message begins.

    Raises
    ------
    TypeError
        For a function, a class, or a module on the device "meta".
    ValueError
        If weights are results of a computation, as those of a scripted module's copy are.
    """
    expected = "expected a torch.nn.Module with its weights"
    if isinstance(segment, type):
        raise TypeError(
            f"{name} is the class {segment.__name__}; {expected}: {segment.__name__}(...)"
        )
    if not isinstance(segment, nn.Module):
        raise TypeError(f"{name} is {with_article(type(segment).__name__)}; {expected}")
    if any(p.is_meta for p in segment.parameters()):
        raise TypeError(
            f"{name} is on the device 'meta', without values; {expected}, on a real device"
        )
    if computed := [weight for weight, p in segment.named_parameters() if not p.is_leaf]:
        raise ValueError(
            f"{name} has weights that are results of a computation, which no optimizer can train, "
            f"such as {computed[0]}: copy.deepcopy makes them so in a scripted or traced module; "
            "make each copy anew, with torch.jit.script, trace or load"
        )


def check_takes_mask(name: str, part: nn.Module) -> None:
    """Refuse a part of the U shape that cannot be called with a mask beside its inputs.

    Raises
    ------
    TypeError
        If its forward pass takes another number of arguments; the message begins with `name`.
    """
    if not takes(part.forward, None, None):
        raise TypeError(
            f"{name} is called with (inputs, mask): give its forward pass a second argument, which "
            "it may leave unused"
        )


def with_statistics(part: nn.Module) -> str:
    """Return the kind of a layer that measures running statistics, or "" if there is none.

    In the U shape they are not weights, so they are not averaged where heads and tails are.
    """
    for layer in part.modules():
        kind = getattr(layer, "original_name", type(layer).__name__)  # of a scripted module
        norm = isinstance(layer, (*BATCH_NORMS, *_INSTANCE_NORMS)) or "BatchNorm" in kind
        if norm and getattr(layer, "track_running_stats", False):
            return str(kind)
    return ""


def not_in_place(module: nn.Module) -> nn.Module:
    """Return the module, or a copy of an activation that would overwrite its input."""
    if not getattr(module, "inplace", False):
        return module
    other = copy.copy(module)
    other.inplace = False  # type: ignore[assignment]
    return other
