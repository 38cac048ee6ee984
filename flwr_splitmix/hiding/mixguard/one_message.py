"""The extension `gradients = "one-message"`: one message of a step carries the gradient of all."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.device import in_float64
from flwr_splitmix.seeding import secret_uniform


def one_message(gradients: Tensor, *, per_sample: bool = False) -> Tensor:
    """Keep one message's gradient, drawn in secret and scaled so that the expectation is the same.

    Message l is drawn with probability `p_l = |g_l| / sum_j |g_j|`; `g_l / p_l` is returned in
    place of `g_l`, and zeros in place of all others. So every message's gradient is unbiased, and
    with it, for a fixed trunk, those of trunk and head. The result has the norm `sum_j |g_j|`
    whichever message is drawn. It reveals the direction of the loss's gradient. Of the decoding
    weights, which MixGuard's m gradients reveal up to scale, it reveals at most their absolute
    sum, one sign, and that heavy messages are drawn more often.

    This stops the gradient-ratio attack. Blind separation of the messages and key search need no
    gradient and still work.

    Parameters
    ----------
    gradients
        (m, b, T, d), at the trunk's outputs.
    per_sample
        Draw for each text separately, if secrets are drawn per text.

    Returns
    -------
    (m, b, T, d), of the same dtype. All-zero gradients are returned unchanged.

    Source: none; an answer to the attack by gradient ratio (docs/mixguard.md). Drawing in
    proportion to norms has the least variance (importance sampling).
    """
    rows = gradients.flatten(2) if per_sample else gradients.flatten(1).unsqueeze(1)
    norms = in_float64(rows).norm(dim=2)  # (m, b) or (m, 1)
    upto = norms.cumsum(0)
    drawn = secret_uniform((norms.shape[1],)).to(norms) * upto[-1]
    chosen = (upto <= drawn).sum(0).clamp(max=len(norms) - 1)
    is_chosen = torch.arange(len(norms), device=norms.device).unsqueeze(1) == chosen
    factors = torch.where(is_chosen & (norms > 0), upto[-1] / norms.clamp(min=1e-300), 0.0)
    factors = factors.reshape(*factors.shape, *[1] * (gradients.ndim - 2))
    return (in_float64(gradients) * factors).to(gradients)
