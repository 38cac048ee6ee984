"""First break of MixGuard: the messages' gradients reveal how to decode the messages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ratio(NamedTuple):
    """The values that the gradients reveal.

    Attributes
    ----------
    estimate
        Estimate of the target's hidden states `H_tau` (b, T, d) up to scale and sign, float64.
    weights
        Decoding weights `w` up to scale and sign, of unit length: float64 (m,), or (b, m) if each
        sample was attacked separately.
    """

    estimate: Tensor
    weights: Tensor


def gradient_ratio(messages: Tensor, gradients: Tensor, *, per_sample: bool = False) -> Ratio:
    """Recover the decoding weights from a step's gradients, and decode its messages with them.

    The gradient of message l is `w_l g` with one g for all: the left singular vector of the
    largest singular value is `w`, and `sum_l w_l S_l` is `H_tau` by the secret's own constraint.
    Noise added to g before it is spread over the messages does not change this.

    Parameters
    ----------
    messages, gradients
        `S` and its gradients (m, b, T, d), one client's uploads in one step.
    per_sample
        Attack each sample separately, for clients that draw a secret per sample.

    Raises
    ------
    ValueError
        If shapes differ or gradients are all zero.

    Source: ours (docs/mixguard.md); it follows from MixGuard's equation 19.
    """
    if messages.shape != gradients.shape or messages.ndim < 3:
        raise ValueError(
            f"messages and gradients have shapes {tuple(messages.shape)} and "
            f"{tuple(gradients.shape)}; both must be (m, b, T, d)"
        )
    if not bool(gradients.any()):
        raise ValueError("the gradients are all zero; they reveal nothing about the weights")
    mixtures, returned = messages.detach().double(), gradients.detach().double()
    if per_sample:
        weights = _first_direction(returned.transpose(0, 1).flatten(2))
        return Ratio(torch.einsum("bm,mb...->b...", weights, mixtures), weights)
    weights = _first_direction(returned.flatten(1))
    return Ratio(torch.einsum("m,m...->...", weights, mixtures), weights)


def _first_direction(rows: Tensor) -> Tensor:
    """Return the left singular vector of the largest singular value of (..., m, n): (..., m)."""
    direction: Tensor = torch.linalg.eigh(rows @ rows.mT).eigenvectors[..., -1]
    return direction
