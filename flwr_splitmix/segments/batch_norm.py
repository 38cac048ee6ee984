"""Batch normalisation in a segment: one example moves its whole batch."""

from __future__ import annotations

from torch import nn


def has_batch_norm(segment: nn.Module) -> bool:
    """Return whether one example can change what the segment makes of the others in its batch.

    There is no epsilon then: noise is calibrated to what an example does to its own upload.
    """
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in segment.modules())
