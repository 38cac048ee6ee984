"""Third break of MixGuard: a text that is mixed twice is what the two mixtures have in common."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Common(NamedTuple):
    """What two sets of messages have in common.

    Attributes
    ----------
    estimate
        Of the target's hidden states (b, T, d) up to scale and sign, float64.
    cosine
        Of the least angle between the two spans: 1 if they do share a direction.
    """

    estimate: Tensor
    cosine: float


def repeated_text(first: Tensor, second: Tensor) -> Common:
    """Intersect the spans of two sets of messages of one target.

    `sum_l w_l S_l = H_tau` for each of them, with weights of its own: so each span holds the
    target's hidden states, and beside them other supports in other mixtures. The attack needs no
    gradient, and no choice among components. It is exact where the head is the same both times
    and no secret token moves the words: in an evaluation, or under a head that does not learn.

    Parameters
    ----------
    first, second
        (m, b, T, d) or (m, T, d), each under one secret; m may differ.

    Raises
    ------
    ValueError
        If their targets are of different shapes.

    Source: ours. The angle is the first principal angle between subspaces (Björck and Golub 1973).
    """
    if first.shape[1:] != second.shape[1:] or first.ndim < 2:
        raise ValueError(
            f"messages have shapes {tuple(first.shape)} and {tuple(second.shape)}; "
            "they must be (m, ...) of one target"
        )
    one, other = (
        torch.linalg.qr(messages.detach().double().cpu().flatten(1).T).Q
        for messages in (first, second)
    )
    left, cosines, _ = torch.linalg.svd(one.T @ other)
    return Common((one @ left[:, 0]).reshape(first.shape[1:]), float(cosines[0]))
