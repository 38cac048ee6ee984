"""Layers that tie the examples of a batch to each other, batch normalisation above all."""

from __future__ import annotations

from torch import nn


def has_batch_norm(segment: nn.Module) -> bool:
    """Return whether one example can change what the segment makes of the others in its batch.

    There is no epsilon then: noise is calibrated to what an example does to its own upload.
    """
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in segment.modules())


def needs_whole_batch(segment: nn.Module) -> str:
    """Return which layers make something else of a part of a batch; "" if none does.

    Besides BatchNorm, modules say so by an attribute `across_batch` that is true.
    """
    if has_batch_norm(segment):
        return "BatchNorm"
    parts = (part for part in segment.modules() if getattr(part, "across_batch", False))
    return next((type(part).__name__ for part in parts), "")
