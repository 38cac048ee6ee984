"""Layers that make examples of a batch depend on each other, above all batch normalisation."""

from __future__ import annotations

from torch import nn


def has_batch_norm(segment: nn.Module) -> bool:
    """Return whether BatchNorm lets an example change the outputs of the others in its batch.

    If so, there is no epsilon: noise is calibrated to an example's effect on its own upload.
    """
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in segment.modules())


def needs_whole_batch(segment: nn.Module) -> str:
    """Return the kind of layers whose outputs change if a batch is divided; "" if there are none.

    These are BatchNorm and modules with a true attribute `across_batch`.
    """
    if has_batch_norm(segment):
        return "BatchNorm"
    parts = (part for part in segment.modules() if getattr(part, "across_batch", False))
    return next((type(part).__name__ for part in parts), "")
