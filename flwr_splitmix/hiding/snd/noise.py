"""Metric-privacy noise on single tokens, and the bound on their norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import secret_normal, secret_uniform

AT_ONCE = 4096
"""Words whose hidden states are computed together."""


def metric_noise(shape: Sequence[int], eta: float, dtype: torch.dtype) -> Tensor:
    """Draw noise with density proportional to `exp(-eta |z|)`, from the operating system.

    The direction is uniform. The radius is Gamma distributed with shape d and *rate* eta (scale
    1 / eta), so that its mean is d / eta.

    Parameters
    ----------
    shape
        (..., d); each vector of d numbers is a separate draw.

    Returns
    -------
    Tensor of that shape and dtype, on the CPU.

    Source: Feyisetan et al., Privacy- and Utility-Preserving Textual Analysis via Calibrated
    Multivariate Perturbations (2020), section 2.5; Split-N-Denoise (Mai et al., 2023).
    """
    *outer, _ = shape
    direction = secret_normal(shape, torch.float64)
    direction /= torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    # The sum of d exponential variables; uniform numbers are below 1.
    radius = -torch.log1p(-secret_uniform(shape)).sum(-1).reshape(*outer, 1)
    noise: Tensor = direction * (radius / eta)
    return noise.to(dtype)


def clip_to(vectors: Tensor, bound: float) -> Tensor:
    """Scale vectors (..., d) longer than the bound down to it."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    clipped: Tensor = vectors / (length / bound).clamp(min=1)
    return clipped


@torch.no_grad()
def largest_norm(head: nn.Module, vocab_size: int, device: torch.device) -> float:
    """Return the largest norm of a head's hidden states for single words.

    Parameters
    ----------
    head
        (ids int64 (b, T), mask (b, T)) to hidden states (b, T, d).
    vocab_size
        Words are 0 to vocab_size - 1, each a text of its own.

    Raises
    ------
    ValueError
        If the norm is 0 or not finite.
    """
    training = head.training
    head.eval()
    longest: list[Tensor] = []
    for start in range(0, vocab_size, AT_ONCE):
        ids = torch.arange(start, min(start + AT_ONCE, vocab_size), device=device)[:, None]
        norms = torch.linalg.vector_norm(head(ids, torch.ones_like(ids)).float(), dim=-1)
        longest.append(norms.max())
    head.train(training)
    most = float(torch.stack(longest).max())  # torch's maximum propagates NaN
    if not 0 < most < float("inf"):
        raise ValueError(
            f"the largest norm of the vocabulary's hidden states is {most}; it must be a number "
            "above 0"
        )
    return most
