"""Third break of MixGuard: a text mixed twice is what the two mixtures have in common."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SharedMessages(NamedTuple):
    """The part that two sets of messages have in common.

    Attributes
    ----------
    estimate
        Estimate of the target's hidden states (b, T, d) up to scale and sign, float64.
    cosine
        Cosine of the least angle between the two spans: 1 if they share a direction.
    """

    estimate: Tensor
    cosine: float


def repeated_text(first: Tensor, second: Tensor) -> SharedMessages:
    """Intersect the spans of two sets of messages of one target.

    `sum_l w_l S_l = H_tau` holds for each of them, with its own weights: so each span contains the
    target's hidden states, besides different supports in different mixtures. The attack needs no
    gradient and no choice among components. It is exact if the head is the same both times and no
    secret token shifts the words: in an evaluation, or with a frozen head.

    Parameters
    ----------
    first, second
        (m, b, T, d) or (m, T, d), each under one secret; m may differ.

    Raises
    ------
    ValueError
        If their targets have different shapes.

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
    return SharedMessages((one @ left[:, 0]).reshape(first.shape[1:]), float(cosines[0]))
