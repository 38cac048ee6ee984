"""Trials of a segment: its copies, inputs drawn like others, and outputs that agree."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws

M = TypeVar("M", bound=nn.Module)


def widened_copies(segment: M, inputs: Tensor) -> list[Callable[[], tuple[M, Tensor]]]:
    """Return functions that make a copy of a segment, and the inputs for it; try the first first.

    Of a segment with weights or buffers of 16 bits, which hide small differences, the first makes
    a copy in float32, with inputs in float32 unless they are integers. The last, or only one leaves
    both as they are: a segment may be unable to compute in float32.
    """
    weights = segment.state_dict().values()
    halves = any(
        isinstance(w, Tensor) and w.dtype in (torch.float16, torch.bfloat16) for w in weights
    )
    return [
        partial(_copied, segment, inputs, widened=widened)
        for widened in ((True, False) if halves else (False,))
    ]


def _copied(segment: M, inputs: Tensor, *, widened: bool) -> tuple[M, Tensor]:
    copied = copy.deepcopy(segment)
    if not widened:
        return copied, inputs
    return copied.float(), inputs.float() if inputs.is_floating_point() else inputs


class InconclusiveTrialError(Exception):
    """A trial that shows nothing."""


def with_rows(outputs: object, count: int) -> Tensor:
    """Return a copy of outputs that have a row for each example.

    Raises
    ------
    InconclusiveTrialError
        If they have not.
    """
    if not isinstance(outputs, Tensor) or not outputs.dim() or len(outputs) != count:
        raise InconclusiveTrialError("it does not return a tensor with a row for each example")
    return outputs.clone()  # it may be a buffer


def draw_like(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Draw two batches of numbers of the inputs' range.

    The range is that of the examples at the same place, which may hold an index of few values; or
    of all numbers if nothing varies. Real and imaginary parts of complex numbers have ranges of
    their own.
    """
    if inputs.is_complex():
        first, second = draw_like(torch.view_as_real(inputs.resolve_conj()))
        return torch.view_as_complex(first), torch.view_as_complex(second)
    exact = inputs.nan_to_num(0.0, 0.0, 0.0).float()
    low, high = exact.amin(0), exact.amax(0)
    if torch.equal(low, high):
        low, high = low.min().clamp(max=0.0), high.max()
        high = torch.maximum(high, low + 1)
    whole = not inputs.is_floating_point()
    with seeded_draws(inputs.device, 1):
        drawn = low + torch.rand((2, *inputs.shape), device=inputs.device) * (high - low + whole)
    first, second = torch.minimum(drawn.floor() if whole else drawn, high).to(inputs.dtype)
    return first, second


@torch.no_grad()
def renew(segment: nn.Module, device: torch.device) -> None:
    """Replace weights by random ones of usual sizes; norms, biases and gates lie around 1."""
    with seeded_draws(device, 0):
        for value in segment.state_dict().values():
            if not isinstance(value, Tensor):
                continue
            numbers = torch.view_as_real(value) if value.is_complex() else value
            if not numbers.is_floating_point():
                continue
            drawn = torch.empty(numbers.shape, device=numbers.device)
            if value.dim() < 2:
                drawn.uniform_(0.5, 1.5)
            else:
                drawn.normal_(std=math.sqrt(len(value) / max(value.numel(), 1)))
            numbers.copy_(drawn)


def agree(one: Tensor, other: Tensor, *, ulps: int = 1, usual: float = 0.0) -> bool:
    """Return whether outputs (b, ...) are equal, but for rounding.

    Numbers smaller than `usual` are rounded as that is: they may be sums of larger ones.

    A number may be off by its own rounding error, or `ulps` times as much, and by a small part of
    how far examples are apart there: experts that are run on other examples' tokens, too, round
    otherwise. A number that is large in all examples does not hide differences elsewhere.
    """
    if torch.equal(one, other):
        return True
    if one.shape != other.shape or not one.is_floating_point():
        return False
    eps, exact = torch.finfo(one.dtype).eps, torch.finfo(torch.float32).eps
    one, other = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (one, other))
    same = (one == other) | (one.isnan() & other.isnan())
    spread = (one.amax(0) - one.amin(0)).nan_to_num(0.0, 0.0, 0.0)
    rounding = ulps * eps * one.abs().clamp(min=usual)
    close = (one - other).abs() <= rounding + math.sqrt(max(eps, exact)) * spread
    return bool((same | close).all())
