"""Several releases of one image: their distances and their average."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_COMMON = 4
"""Fewest common patches for comparing two rows: fewer may all be background."""


def unite(tokens: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Average e releases of n images, at every patch over the releases that hold it.

    Averaging turns noise of standard deviation s into s / sqrt(e); masks become their union.

    Parameters
    ----------
    tokens
        (e, n, prefix + N, d), 0 where nothing was received.
    masks
        bool (e, n, N).

    Returns
    -------
    (n, prefix + N, d), and the fraction of the releases that hold each patch, float (n, N).

    Source: Patch Shuffling, section III ("adaptive attacks").
    """
    releases, _, length, _ = tokens.shape
    prefix = length - masks.shape[2]
    presence = torch.cat([masks.new_ones(*masks.shape[:2], prefix), masks], dim=2).to(tokens.dtype)
    count = presence.sum(0)
    united = (tokens * presence[..., None]).sum(0) / count.clamp_min(1)[..., None]
    return united, count[:, prefix:] / releases


def united_noise(noise: Tensor | None, masks: Tensor) -> Tensor | None:
    """Return the variance of the noise that is left in the averages of `unite`: float64 (n, N).

    It is infinite for patches that no release holds: their tokens reveal nothing.

    Parameters
    ----------
    noise
        float64 (e, n, N): the variance in each release; None if there is none.
    masks
        bool (e, n, N).
    """
    if noise is None:
        return None
    count = masks.sum(0)
    variances = (noise * masks).sum(0) / count.clamp_min(1).square()
    return variances.masked_fill(count == 0, torch.inf)


def distances(tokens: Tensor, mask: Tensor, others: Tensor, masks: Tensor) -> Tensor:
    """Return the distances between rows at the patches that both hold.

    Parameters
    ----------
    tokens, others
        (a, N, d) and (b, N, d), 0 where nothing was received.
    mask, masks
        bool (a, N) and (b, N).

    Returns
    -------
    (a, b): mean square over the common patches; infinite if these are too few.
    """
    # A difference of large squares: rounding in float32 would separate equal rows.
    tokens, others = tokens.double(), others.double()
    presence, others_presence = mask.to(tokens), masks.to(tokens)
    common = presence @ others_presence.T
    squares = tokens.square().sum(2) * presence
    square = squares @ others_presence.T + presence @ (others.square().sum(2) * others_presence).T
    masked, others_masked = tokens * presence[..., None], others * others_presence[..., None]
    both = square - 2 * masked.flatten(1) @ others_masked.flatten(1).T
    enough = common >= min(MIN_COMMON, tokens.shape[1])
    return torch.where(enough, both.clamp_min(0) / (common * tokens.shape[2]), torch.inf)
