"""Layers through which a patch spreads: each number of an input changes more than one token."""

from __future__ import annotations

import copy
import logging

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.across_batch import draw_like, has_halves, renew

log = logging.getLogger("flwr.splitmix")

_ROWS = 32
"""Tokens that are looked at together."""

_ROUNDING = 10
"""Smallest part of the largest derivative that counts, in units of the dtype's precision."""


def spreading_tokens(segment: nn.Module, inputs: Tensor) -> int | None:
    """Return how many of a segment's tokens tell of input numbers of which others tell, too.

    Of such a segment a mask hides no patch: the tokens that are sent tell of those that are left
    out. Attention and convolutions whose windows overlap spread a patch; a patch embedding does
    not. A copy of the segment with random weights gets random inputs, so that the answer tells of
    no example and is the same for all weights: where a patch can spread, whoever chooses the
    weights decides how far. If it fails on these, it keeps its own weights. For each token, the
    derivatives show of which numbers it tells, in evaluation mode. Torch's random generators are
    left as they were.

    Parameters
    ----------
    inputs
        Examples (b, ...), on the segment's device; only their shape, dtype and range matter.

    Returns
    -------
    A number from 0 to the number of tokens, prefix tokens included; None if it cannot be told: if
    the segment cannot be copied, or has no derivatives by its inputs, because they are whole
    numbers or its forward pass detaches them.
    """
    why = ""
    for renewed in (True, False):
        try:
            copied = copy.deepcopy(segment).eval().requires_grad_(False)
            if has_halves(segment):
                copied, inputs = copied.float(), inputs.float()
            if renewed:
                renew(copied, inputs.device)
            return _shared(_seen(copied, draw_like(inputs)[0]))
        except Exception as error:  # random weights may not be what the segment can take
            why = str(error)
    log.debug("%s: spreading cannot be told: %s", type(segment).__name__, why)
    return None


def _shared(seen: Tensor) -> int:
    """Return how many of the tokens share a number, of bool (tokens, numbers)."""
    return int(seen[:, seen.sum(0) > 1].any(1).sum())


def _seen(segment: nn.Module, inputs: Tensor) -> Tensor:
    """Return of which numbers of an input each token tells: bool (tokens, numbers)."""

    def call(batch: Tensor) -> Tensor:
        with seeded_draws(batch.device, 0), seeded_secrets():
            outputs: Tensor = segment(batch)
        return outputs

    with torch.no_grad():
        one = call(inputs[:1])
    with seeded_draws(inputs.device, 1):
        directions = torch.randn_like(one[0])
    rows = []
    for tokens in torch.split(torch.arange(one.shape[1], device=inputs.device), _ROWS):
        with torch.enable_grad():
            batch = inputs[tokens % len(inputs)].requires_grad_()
            chosen = call(batch)[torch.arange(len(tokens), device=tokens.device), tokens]
            (slopes,) = torch.autograd.grad((chosen * directions[tokens]).sum(), batch)
        slopes = slopes.flatten(1).abs()
        if not slopes.isfinite().all():
            raise ValueError("its derivatives are NaN or infinite")
        least = _ROUNDING * torch.finfo(slopes.dtype).eps * slopes.amax()
        rows.append(slopes > least)
    seen = torch.cat(rows)
    if not seen.any():
        raise ValueError("its outputs do not depend on its inputs")
    return seen
