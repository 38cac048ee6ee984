"""Layers that make examples of a batch depend on each other, above all batch normalisation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import torch_seed

log = logging.getLogger("flwr.splitmix")

MIXING_LAYERS = "a layer across the batch"
"""What is said of a segment whose outputs show it, while the names of its layers do not."""


def needs_whole_batch(segment: nn.Module) -> str:
    """Return the kind of layers by which an example changes the outputs of others in its batch.

    These are BatchNorm and modules with a true attribute `across_batch`; "" if there are none. With
    one, a batch cannot be divided, and there is no epsilon: noise is calibrated to an example's
    effect on its own upload.
    """
    for part in segment.modules():
        name = getattr(part, "original_name", "")  # of a scripted module
        if isinstance(part, nn.modules.batchnorm._BatchNorm) or "BatchNorm" in name:
            return "BatchNorm"
    parts = (part for part in segment.modules() if getattr(part, "across_batch", False))
    return next((type(part).__name__ for part in parts), "")


@contextmanager
def enough_values(segment: str) -> Iterator[None]:
    """Name the remedy if batch normalisation gets one value of each channel in training.

    Parameters
    ----------
    segment
        Which one is run: "lower" or "upper".

    Raises
    ------
    ValueError
        With the remedy, in place of torch's.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"batch normalisation in the {segment} segment needs more than one value of each "
            "channel, and gets one from a batch of one example: take batches of two or more, or "
            "layers that work on single examples (GroupNorm)"
        ) from error


def mixes_examples(segment: nn.Module, inputs: Tensor) -> bool:
    """Return whether an example's output in training changes with the others of its batch.

    Finds what `needs_whole_batch` cannot see, such as attention over the batch
    (`nn.TransformerEncoderLayer` without `batch_first`) or `F.batch_norm`. A copy of the segment
    is run two or three times as it is, and with changed weights, since a branch whose weight
    is 0 may open in training; torch's random generators are left as they were.

    Parameters
    ----------
    inputs
        Some examples (b, ...), on the segment's device.

    Returns
    -------
    False also if it cannot be told: with one example, if the segment cannot be copied, or if its
    outputs differ from call to call although torch's generators are seeded.
    """
    alone = inputs[:1].expand(inputs.shape)
    if torch.equal(alone, inputs):
        return False
    try:
        copied = copy.deepcopy(segment).train()
    except Exception as error:  # whatever it is made of
        log.warning(
            "whether the lower segment mixes examples is told by the names of its layers only, as "
            "it cannot be copied: %s",
            error,
        )
        return False
    if _mixes(copied, inputs, alone):
        return True
    _shake(copied)
    try:
        return _mixes(copied, inputs, alone)
    except Exception as error:  # weights may have to satisfy something, as a table of indices does
        log.warning(
            "whether the lower segment mixes examples is told by its present weights only, as it "
            "does not run with others: %s",
            error,
        )
        return False


def _mixes(segment: nn.Module, inputs: Tensor, alone: Tensor) -> bool:
    first, other = (_outputs(segment, batch) for batch in (inputs, alone))
    if not isinstance(first, Tensor) or not first.dim() or _agree(first[0], other[0]):
        return False
    return _agree(first[0], _outputs(segment, inputs)[0])


@torch.no_grad()
def _shake(segment: nn.Module) -> None:
    """Add noise to every weight, so that none is near 0."""
    generator = torch.Generator().manual_seed(0)
    for weight in segment.parameters():
        if weight.is_floating_point():
            size = max(float(weight.abs().mean().nan_to_num(0.0)), 0.1)
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((0.5 * size * noise).to(weight))


def _outputs(segment: nn.Module, inputs: Tensor) -> Any:
    with torch_seed(inputs.device, 0), torch.no_grad():
        return segment(inputs.clone())


def _agree(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return one.shape == other.shape and torch.equal(one, other)
    size = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    tolerance = 16 * torch.finfo(one.dtype).eps * size
    return torch.allclose(one, other, rtol=0.0, atol=tolerance, equal_nan=True)
