"""The linear inverse of a patch embedding, from pairs of tokens and patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CUTOFF = 1e-5
"""Singular values below this fraction of the largest are float32 rounding, not the embedding."""

ROWS = 20_000
"""Most token-patch pairs used: more change nothing if the embedding is linear."""


@dataclass(frozen=True)
class LinearInverse:
    """Patches as a linear function of their tokens, with one intercept per slot.

    Parameters
    ----------
    weights
        float64 (d, P): from a token to the P pixels of a patch.
    offsets
        float64 (N, P).
    """

    weights: Tensor
    offsets: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return patches (b, N, P), float64, of tokens (b, N, d)."""
        return tokens.to(self.weights) @ self.weights + self.offsets


def fit_inverse(tokens: Tensor, patches: Tensor, is_held: Tensor | None = None) -> LinearInverse:
    """Fit patches to their tokens by least squares.

    If the lower segment is a patch embedding, with any positions, this is its pseudo-inverse;
    after a block it is the best linear guess.

    Parameters
    ----------
    tokens
        (n, N, d), without prefix tokens.
    patches
        (n, N, P), of the same images.
    is_held
        bool (n, N): the pairs to use; None for all.
    """
    n = min(len(tokens), max(2, ROWS // tokens.shape[1]))
    sources, targets = tokens[:n].double().cpu(), patches[:n].double().cpu()
    used = torch.ones(sources.shape[:2]) if is_held is None else is_held[:n].cpu()
    weight = used.double()[..., None]
    count = weight.sum(0).clamp_min(1)
    middle, centre = (sources * weight).sum(0) / count, (targets * weight).sum(0) / count
    rows, columns = (sources - middle)[used.bool()], (targets - centre)[used.bool()]
    left, strengths, right = torch.linalg.svd(rows, full_matrices=False)
    significant = strengths > CUTOFF * strengths.max()
    weights = (right[significant].T / strengths[significant]) @ (left[:, significant].T @ columns)
    return LinearInverse(weights, centre - middle @ weights)
