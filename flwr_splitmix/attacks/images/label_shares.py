"""What a received label says of an image's class, also of one part of a mixture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.knowledge import Knowledge

SPREAD = 0.05
"""By how much a class's weight in a mixture's label may differ from its owner's share of it."""


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


def of_part(labels: Tensor, share: Tensor) -> Tensor:
    """Return how likely a mixture's part is of each class: float64 (b, L), each sum 1.

    A mixture's label gives each class the share that its image has.

    Parameters
    ----------
    labels
        As of `label_shares`, of the mixture.
    share
        (b,): the part's share of the mixture.
    """
    apart = (labels - share[:, None]) / SPREAD
    return (labels.log() - apart.square() / 2).softmax(1)
