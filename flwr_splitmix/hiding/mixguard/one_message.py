"""The extension `gradients = "one-message"`: one message of a step carries the gradient of all."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.seeding import secret_uniform


def one_message(gradients: Tensor, *, per_sample: bool = False) -> Tensor:
    """Keep one message's gradient, drawn in secret, in such a size that the mean stays the same.

    Message l is drawn with probability `p_l = |g_l| / sum_j |g_j|`, and `g_l / p_l` goes back in
    place of `g_l`, zeros in place of all others. So every message's gradient is right in the mean,
    and with it, for the trunk as it is, those of trunk and head. What goes back has the norm
    `sum_j |g_j|` whichever message is drawn: it tells the direction of the loss's gradient, but of
    the decoding weights, which MixGuard's m gradients tell up to scale, their absolute sum at most,
    one sign, and that a heavy message is drawn more often.

    It closes the attack by gradient ratio. Separation of the messages alone and key search need no
    gradient, and go on as before.

    Parameters
    ----------
    gradients
        (m, b, T, d), at the trunk's outputs.
    per_sample
        Draw for each text by itself: where secrets are drawn so.

    Returns
    -------
    (m, b, T, d), of the same dtype. Gradients that are all zero come back as they are.

    Source: none; an answer to the attack by gradient ratio (docs/mixguard.md). Drawing in
    proportion to norms has the least variance (importance sampling).
    """
    rows = gradients.flatten(2) if per_sample else gradients.flatten(1).unsqueeze(1)
    norms = rows.double().norm(dim=2)  # (m, b) or (m, 1)
    upto = norms.cumsum(0)
    drawn = secret_uniform((norms.shape[1],)).to(norms) * upto[-1]
    chosen = (upto <= drawn).sum(0).clamp(max=len(norms) - 1)
    own = torch.arange(len(norms), device=norms.device).unsqueeze(1) == chosen
    factors = torch.where(own & (norms > 0), upto[-1] / norms.clamp(min=1e-300), 0.0)
    factors = factors.reshape(*factors.shape, *[1] * (gradients.ndim - 2))
    return (gradients.to(factors.dtype) * factors).to(gradients.dtype)
