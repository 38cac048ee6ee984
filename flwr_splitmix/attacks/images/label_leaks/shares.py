"""The classes of an image, or of one part of a mixture, that agree with a received label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.knowledge import Knowledge

MAX_WEIGHT_ERROR = 0.05
"""By how much a class's weight in a mixture's label may differ from its owners' shares of it."""

MAX_TOGETHER = 8
"""Largest number of other parts whose subsets are all tried."""


def label_shares(labels: Tensor | None, knowledge: Knowledge) -> Tensor | None:
    """Return each class's share of received labels: float64 (b, L), at least 0, each sum 1.

    Noise on soft labels may leave none above 0: then all classes have the same share.

    Parameters
    ----------
    labels
        int64 (b,), or soft labels (b, L), as in `Release`.

    Returns
    -------
    None if there are none, or if an image may have several of the classes.
    """
    classes = knowledge.num_classes
    if labels is None or knowledge.multi_label:
        return None
    if labels.ndim == 1:
        if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= classes:
            return None
        return F.one_hot(labels.cpu(), classes).double()
    if labels.shape[1:] != (classes,):
        return None
    shares = labels.detach().cpu().double().nan_to_num(0, 0, 0).clamp_min(0)
    shares = torch.where(shares.sum(1, keepdim=True) > 0, shares, torch.ones_like(shares))
    return shares / shares.sum(1, keepdim=True)


def share_of(mask: Tensor) -> Tensor:
    """Return which share of the patches a mask, bool (b, N), holds: float64 (b,)."""
    return mask.cpu().double().mean(1)


def of_parts(labels: Tensor, shares: Tensor) -> Tensor:
    """Return the probability of each class for each part of a mixture: float64 (b, k, L), sums 1.

    A mixture's label gives each class the shares of all its images, so a class that is heavier than
    a part may be another part's, too: any of the others may have it.

    Parameters
    ----------
    labels
        As of `label_shares`, of the mixture.
    shares
        (b, k): each part's share of the mixture.
    """
    parts = shares.shape[1]
    likely = []
    for part in range(parts):
        others = [other for other in range(parts) if other != part]
        ways = []
        for with_it in _subsets(others):
            sharing = shares[:, [part, *with_it]].sum(1, keepdim=True)
            apart = (labels - sharing) / MAX_WEIGHT_ERROR
            ways.append(-apart.square() / 2)
        likely.append((labels.log() + torch.stack(ways).logsumexp(0)).softmax(1))
    return torch.stack(likely, dim=1)


def _subsets(others: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield which other parts may have the same class; of very many parts, none or one of them."""
    most = len(others) if len(others) <= MAX_TOGETHER else 1
    return chain.from_iterable(combinations(others, size) for size in range(most + 1))
