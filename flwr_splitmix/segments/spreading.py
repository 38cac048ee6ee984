"""Layers through which a patch spreads: a number of an input changes more than one token."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.trials import draw_like, renew, widened_copies

log = logging.getLogger("flwr.splitmix")

_CHANGED_NUMBERS = 48
"""Numbers of an input that are changed, one at a time, in evaluation mode."""

_IN_TRAINING = 8
"""Those of them that are also changed in training mode."""

_INPUTS_PER_PASS = 8
"""Changed inputs in a forward pass."""

_MIN_CHANGE = 10
"""Smallest change of a token that counts, in units of the dtype's precision."""


def spreading_tokens(segment: nn.Module, inputs: Tensor) -> int | None:
    """Return how many tokens, at least, depend on a part of the input that others depend on, too.

    With such a segment a mask hides no patch: the tokens that are sent reveal those that are left
    out. Attention and convolutions whose windows overlap spread a patch, and so do norms over the
    image or, in training, over the batch; a patch embedding does not. A copy of the segment with
    random weights gets a random input, of which single numbers, 48 at places spread over the
    input, are replaced: the tokens that change depend on them. So the answer reveals no example and
    is the same for all weights: where a patch can spread, a server that chooses the weights decides
    how far. A copy that fails on random weights is tried with its own: these can show that a patch
    spreads, but not that it does not, as other weights may. Torch's random generators are left as
    they were.

    Parameters
    ----------
    inputs
        Examples (b, ...), on the segment's device; only their shape, dtype and range matter.

    Returns
    -------
    A number from 0 to the number of tokens, prefix tokens included; None if the trial is
    inconclusive: the segment cannot be copied, or computes in 16 bits only, or no replaced number
    changes its output, or it fails on random weights and no patch spreads with its own.
    """
    why = ""
    widest, *_ = widened_copies(segment, inputs)  # in 16 bits a token may seem not to change
    for renewed in (True, False):
        try:
            copied, examples = widest()
            if renewed:
                renew(copied, examples.device)
            copied.requires_grad_(False)
            number = _spread(copied, *(drawn[:1] for drawn in draw_like(examples)))
            if number or renewed:
                return number
            why = "it takes no random weights, and its own may hide what others show"
        except Exception as error:  # random weights may not be what the segment can take
            why = str(error)
    log.debug("%s: whether patches spread could not be determined: %s", type(segment).__name__, why)
    return None


@torch.no_grad()
def _spread(segment: nn.Module, one: Tensor, other: Tensor) -> int:
    """Return how many tokens change together with another when a number of an input is replaced."""
    changed = torch.cat([*_changed(segment.eval(), one, other, _CHANGED_NUMBERS, _INPUTS_PER_PASS)])
    if not changed.any():
        raise ValueError("no number of its input changes its output")
    # Statistics of a batch are those of one changed input alone.
    training = [*_changed(segment.train(), one, other, _IN_TRAINING, 1)]
    changed = torch.cat([changed, *training])
    return int(changed[changed.sum(1) > 1].any(0).sum())


def _changed(
    segment: nn.Module, one: Tensor, other: Tensor, places: int, together: int
) -> Iterator[Tensor]:
    """Yield which tokens change when a number of an input is replaced: bool (places, tokens)."""
    buffers = [(buffer, buffer.clone()) for buffer in segment.buffers()]

    def call(batch: Tensor) -> Tensor:
        for buffer, value in buffers:  # in training a forward pass may change them
            buffer.copy_(value)
        with seeded_draws(batch.device, 0), seeded_secrets():
            outputs: Tensor = segment(batch.clone())  # it may change its inputs
        return outputs

    count = one[0].numel()
    # Steps of the golden ratio reach all parts of the input, and no period of its layout.
    at = (torch.arange(places, dtype=torch.float64) * 0.6180339887498949 % 1 * count).long()
    distinct = torch.tensor(sorted(set(at.tolist())), device=one.device)
    for chosen in torch.split(distinct, together):
        rows = torch.arange(len(chosen), device=one.device)
        batch = one.expand(len(chosen), *one.shape[1:]).clone()
        before = call(batch)
        flat, values = batch.view(len(chosen), -1), other.flatten()[chosen]
        if batch.is_floating_point():  # an index may have no next one
            values = torch.where(flat[rows, chosen] == values, values + 1, values)
        flat[rows, chosen] = values
        after = call(batch)
        if not (before.isfinite().all() and after.isfinite().all()):
            raise ValueError("its outputs are NaN or infinite")
        least = _MIN_CHANGE * torch.finfo(before.dtype).eps * before.abs().amax()
        yield ((after - before).abs() > least).flatten(2).any(2)
