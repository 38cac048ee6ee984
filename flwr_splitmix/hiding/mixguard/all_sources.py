"""The extension `gradients = "all-sources"`: gradients of rank k where MixGuard's have rank one."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard.secret import Secret


def balance_gradients(secret: Secret, gradients: Tensor, *, strength: float = 1.0) -> Tensor:
    """Scale the supports' gradients to the size of the target's in the messages.

    As published, the gradient of message l is `w_l g`, and m collinear gradients reveal `w` up to
    scale. Here the client decodes all sources, `sources = secret.decode_sources(outputs)`, uses a
    public loss on the supports besides the private one on the target, and sends

        sources.backward(balance_gradients(secret, gradients_at_the_sources))

    so that message l gets `sum_i R_il g_i`. The supports' gradients also move the trunk: a smaller
    `strength` moves it less, but hides less from the ratio attack. Blind separation of the
    gradients decodes in any case (`flwr_splitmix.attacks.separate_gradients`): it recovered the
    target with |cos| of at least 0.99 at every strength measured.

    Parameters
    ----------
    secret
        A secret with m >= k.
    gradients
        (k, b, T, d), of the losses with respect to the decoded sources. A support's zero gradient
        stays zero.
    strength
        Norm of each support's part in the messages' gradients, over that of the target's part, for
        each sample.

    Returns
    -------
    (k, b, T, d); the target's is unchanged.

    Raises
    ------
    ValueError
        If m < k, the number of gradients is not k, or strength is negative.

    Source: none; an answer to the attack by gradient ratio (docs/mixguard.md).
    """
    if strength < 0:
        raise ValueError(f"strength is {strength}; it must be at least 0")
    exact = torch.promote_types(gradients.dtype, torch.float32)
    norms = gradients.detach().flatten(2).to(exact).norm(dim=2)  # (k, b)
    rows = secret.source_decoding.norm(dim=-1)  # (k,) or (b, k)
    rows = (rows.unsqueeze(-1) if rows.ndim == 1 else rows.T).to(norms.device, norms.dtype)
    parts = (norms * rows).expand_as(norms)
    target = secret.target_of(parts)
    scale = torch.where(parts > 0, strength * target / parts, torch.zeros_like(parts))
    is_target = secret.arrange(torch.ones_like(target), torch.zeros_like(parts[1:])) > 0
    factors = torch.where(is_target, torch.ones_like(scale), scale)
    factors = factors.reshape(*factors.shape, *[1] * (gradients.ndim - 2))
    return (gradients * factors).to(gradients.dtype)
