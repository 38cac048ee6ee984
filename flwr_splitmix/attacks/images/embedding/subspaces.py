"""The affine subspaces of a patch embedding's tokens, which reveal which client made a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.embedding.inverse import CUTOFF, ROWS
from flwr_splitmix.attacks.images.mixtures.grouping import moves_patches
from flwr_splitmix.attacks.images.networks.reading import FrozenLowers
from flwr_splitmix.attacks.pictures import Pictures

IMAGES = 512
"""Public images that show what a lower segment does."""


@dataclass(frozen=True)
class Subspace:
    """The subspace of one lower segment's tokens: a point per position, and common directions.

    Parameters
    ----------
    points
        float64 (N, d), or (1, d) if places do not count.
    directions
        float64 (d, r), orthonormal; r = d if the tokens fill the space, as after a block.
    """

    points: Tensor
    directions: Tensor

    def distance(self, tokens: Tensor) -> Tensor:
        """Return the distances (b, N) of tokens (b, N, d) from the subspace."""
        apart = tokens.to(self.points) - self.points
        residuals: Tensor = apart - apart @ self.directions @ self.directions.T
        return residuals.square().sum(2).sqrt()


def fit_subspace(tokens: Tensor, *, anywhere: bool = False) -> Subspace:
    """Fit the subspace of one lower segment's patch tokens (n, N, d).

    Parameters
    ----------
    anywhere
        Whether tokens will be in unknown places. If positions were added, they are further
        directions then.
    """
    n = min(len(tokens), max(2, ROWS // tokens.shape[1]))
    sample = tokens[:n].double().cpu()
    points = sample.mean((0, 1))[None] if anywhere else sample.mean(0)
    _, strengths, right = torch.linalg.svd((sample - points).flatten(0, 1), full_matrices=False)
    return Subspace(points, right[strengths > CUTOFF * strengths.max()].T)


def client_subspaces(view: View, public: Pictures, budget: Budget) -> dict[int, Subspace]:
    """Fit the subspace of each client whose lower segment is known; {} if the budget is too short.

    Parameters
    ----------
    public
        Images of the attacked model's shape.
    """
    knowledge = view.knowledge
    if not isinstance(knowledge.lowers, Mapping):
        return {}
    inputs = knowledge.normalise(public.images[:IMAGES])
    lowers = FrozenLowers(knowledge, budget.device)
    anywhere = moves_patches(knowledge.mixer)
    subspaces: dict[int, Subspace] = {}
    for client in sorted(knowledge.lowers):
        lower = lowers[client]
        assert lower is not None
        if subspaces and budget.must_end():
            return {}
        tokens = lower(inputs.to(budget.device))[:, knowledge.geometry.prefix :]
        subspaces[client] = fit_subspace(tokens, anywhere=anywhere)
    return subspaces


def nearest_subspace(tokens: Tensor, subspaces: Sequence[Subspace]) -> tuple[Tensor, Tensor]:
    """Return the nearest subspace of each token, and the certainty.

    Returns
    -------
    int64 (b, N), index into `subspaces`; float64 (b, N) in 0..1, 0 if two are equally near.
    """
    apart = torch.stack([each.distance(tokens) for each in subspaces], dim=2)
    near = apart.topk(2, dim=2, largest=False).values
    return apart.argmin(2), 1 - near[..., 0] / near[..., 1].clamp_min(1e-12)


def owners_among(
    tokens: Tensor, subspaces: Sequence[Subspace], members: int, *, together: bool
) -> tuple[Tensor, Tensor]:
    """Return the members of each mixture, and which of them each token is from.

    Parameters
    ----------
    tokens
        (b, N, d).
    members
        How many are mixed, at most as many as there are subspaces.
    together
        Whether the rows share members and masks, and so vote together.

    Returns
    -------
    int64 (b, members), indices into `subspaces`, with the owners of most tokens first; and int64
    (b, N), indices into the former.
    """
    apart = torch.stack([each.distance(tokens) for each in subspaces], dim=2).square()
    if together:
        apart = apart.mean(0, keepdim=True).expand_as(apart)
    counts = F.one_hot(apart.argmin(2), len(subspaces)).sum(1)
    mixed = counts.topk(members, dim=1).indices
    return mixed, apart.gather(2, mixed[:, None].expand(-1, apart.shape[1], -1)).argmin(2)
