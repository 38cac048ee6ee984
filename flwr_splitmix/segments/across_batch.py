"""Layers that make examples of a batch depend on each other, above all batch normalisation."""

from __future__ import annotations

from torch import nn


def needs_whole_batch(segment: nn.Module) -> str:
    """Return the kind of layers by which an example changes the outputs of others in its batch.

    These are BatchNorm and modules with a true attribute `across_batch`; "" if there are none. With
    one, a batch cannot be divided, and there is no epsilon: noise is calibrated to an example's
    effect on its own upload.
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in segment.modules()):
        return "BatchNorm"
    parts = (part for part in segment.modules() if getattr(part, "across_batch", False))
    return next((type(part).__name__ for part in parts), "")
