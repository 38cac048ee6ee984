"""Adjacency of patches: a learned judgement, and the arrangement that fits it best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.images.networks.transformer import TokenTransformer
from flwr_splitmix.attacks.images.placing.assignment import assign

Judged = tuple[Tensor, Tensor, Tensor]
"""Logits of places, of right and of lower neighbours, each (b, N, N): see `Neighbours`."""

ROUNDS = 30
"""Iterations of graduated assignment; the arrangement has converged by then."""


class Neighbours(nn.Module):
    """Judges an unordered set of tokens (b, prefix + N, d).

    Parameters
    ----------
    width, patches, prefix, model, **size
        See `TokenTransformer`.
    """

    def __init__(self, width: int, patches: int, prefix: int, *, model: int, **size: int) -> None:
        super().__init__()
        self.body = TokenTransformer(
            width, patches, prefix, 5 * model, model=model, positions=False, **size
        )
        self.place = nn.Linear(model, patches)

    def forward(self, tokens: Tensor) -> Judged:
        """Judge places and pairs.

        Returns
        -------
        place
            Logits (b, N, N) of token i at slot j.
        right, below
            Logits (b, N, N) of token j to the right of token i, and below it.
        """
        features, *pairs = self.body(tokens).chunk(5, dim=2)
        left, right, upper, lower = pairs
        scale = left.shape[2] ** -0.5
        return self.place(features), left @ right.mT * scale, upper @ lower.mT * scale


def adjacency(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return which slots are right of, and which below, each slot: float32 (N, N), 0 or 1."""
    rows, columns = grid
    slots = torch.arange(rows * columns)
    beside = (slots[None] - slots[:, None] == 1) & (slots[:, None] % columns != columns - 1)
    under = slots[None] - slots[:, None] == columns
    return beside.float(), under.float()


def neighbour_loss(judged: Judged, place: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the cross-entropy of places and of neighbours.

    Parameters
    ----------
    place
        int64 (b, N): the true slot of each token, a permutation in each row.
    """
    at, *pairs = judged
    loss = F.cross_entropy(at.flatten(0, 1), place.flatten())
    token_at = place.argsort(1)
    for logits, beside in zip(pairs, adjacency(grid), strict=True):
        first, second = beside.nonzero().T.to(place.device)
        rows = logits.gather(1, token_at[:, first, None].expand(-1, -1, logits.shape[2]))
        loss = loss + F.cross_entropy(rows.flatten(0, 1), token_at[:, second].flatten())
    return loss


def arrange(judged: Judged, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Find the arrangement that fits places and neighbours best.

    Returns
    -------
    int64 (b, N), the slot of each token, and its probability (b, N).

    Source: graduated assignment, Gold and Rangarajan 1996, with SciPy's assignment at the end.
    """
    at, *pairs = judged
    n = at.shape[1]
    alone = at.log_softmax(2)
    # Odds of a pair relative to chance, clamped so that no single doubt dominates.
    odds = [(n * logits.softmax(2)).clamp(0.1, 100).log() for logits in pairs]
    besides = [beside.to(at.device) for beside in adjacency(grid)]
    soft = alone.exp()
    for _ in range(ROUNDS):
        score = alone.clone()
        for odd, beside in zip(odds, besides, strict=True):
            score += odd @ soft @ beside.T + odd.mT @ soft @ beside
        for _ in range(5):  # Sinkhorn: one token per slot, one slot per token
            score = score - score.logsumexp(2, keepdim=True)
            score = score - score.logsumexp(1, keepdim=True)
        soft = score.exp()
    slots = assign(score).to(at.device)
    return slots, soft.gather(2, slots[:, :, None])[..., 0]
