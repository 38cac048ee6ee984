"""Losses under the best numbering of a mixture's members."""

from __future__ import annotations

from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_MEMBERS = 5
"""5 members have 120 numberings; larger mixtures are not enumerated."""


def separation_loss(painted: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error under the best assignment, chosen for each sample.

    Parameters
    ----------
    painted, truth
        (b, k, C, H, W).
    """
    apart = (painted[:, :, None] - truth[:, None]).square().flatten(3).mean(3)
    return _better(apart) / truth.shape[1]


def ownership_loss(logits: Tensor, owners: Tensor) -> Tensor:
    """Return the cross-entropy of owners under the best numbering, chosen for each sample.

    Parameters
    ----------
    logits
        (b, N, k).
    owners
        int64 (b, N), 0 to k - 1.
    """
    logs = logits.log_softmax(2)
    owned = F.one_hot(owners, logits.shape[2]).to(logs)
    return _better(-torch.einsum("bni,bnj->bij", logs, owned)) / logits.shape[1]


def _better(costs: Tensor) -> Tensor:
    """Return the mean over samples of the least sum over one-to-one assignments, (b, k, k)."""
    k = costs.shape[1]
    if k > MAX_MEMBERS:
        raise ValueError(f"mixtures of {k} have too many numberings; at most {MAX_MEMBERS}")
    rows = torch.arange(k)
    ways = torch.stack([costs[:, rows, list(way)].sum(1) for way in permutations(range(k))])
    return ways.min(0).values.mean()
