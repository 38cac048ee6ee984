"""The affine subspaces of a patch embedding's tokens, which reveal who made a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.inverse import CUTOFF, ROWS


@dataclass(frozen=True)
class Subspace:
    """The subspace of one lower segment's tokens: a point per position, and common directions.

    Parameters
    ----------
    points
        float64 (N, d).
    directions
        float64 (d, r), orthonormal; r = d if the tokens fill the space, as after a block.
    """

    points: Tensor
    directions: Tensor

    def distance(self, tokens: Tensor) -> Tensor:
        """Return the distances (b, N) of tokens (b, N, d) from the subspace."""
        apart = tokens.to(self.points) - self.points
        left: Tensor = apart - apart @ self.directions @ self.directions.T
        return left.square().sum(2).sqrt()


def fit_subspace(tokens: Tensor) -> Subspace:
    """Fit the subspace of one lower segment's patch tokens (n, N, d)."""
    n = min(len(tokens), max(2, ROWS // tokens.shape[1]))
    seen = tokens[:n].double().cpu()
    points = seen.mean(0)
    _, strengths, right = torch.linalg.svd((seen - points).flatten(0, 1), full_matrices=False)
    return Subspace(points, right[strengths > CUTOFF * strengths.max()].T)


def nearest_subspace(tokens: Tensor, subspaces: Sequence[Subspace]) -> tuple[Tensor, Tensor]:
    """Return the nearest subspace of each token, and the certainty.

    Returns
    -------
    int64 (b, N), index into `subspaces`; float64 (b, N) in 0..1, 0 if two are equally near.
    """
    apart = torch.stack([each.distance(tokens) for each in subspaces], dim=2)
    near = apart.topk(2, dim=2, largest=False).values
    return apart.argmin(2), 1 - near[..., 0] / near[..., 1].clamp_min(1e-12)
