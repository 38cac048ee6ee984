"""How much single messages and their plain sum reveal of a text, measured on hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def measured_leak(messages: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
    """Return each text's |cos| with the best of its messages and of their plain sum.

    This is not an attack, but what a server sees in a message as it is. 1 is the target itself;
    means are removed, as in `flwr_splitmix.attacks.score`.

    Parameters
    ----------
    messages
        m messages (b, T, d).
    target
        (b, T, d), the target's hidden states.

    Returns
    -------
    float64 (b,), on the CPU.
    """
    stacked = torch.stack(list(messages)).detach()
    exact = torch.promote_types(stacked.dtype, torch.float32)
    stacked = stacked.to(exact)
    guesses = _centred(torch.cat([stacked, stacked.sum(0, keepdim=True)]))
    cosines = (guesses * _centred(target.detach().to(exact).unsqueeze(0))).sum(-1)
    return cosines.abs().amax(0).cpu().double()


def _centred(texts: Tensor) -> Tensor:
    """Remove each text's mean from (n, b, T, d) and scale to unit length: (n, b, T d)."""
    flat = texts.flatten(2)
    return torch.nn.functional.normalize(flat - flat.mean(-1, keepdim=True), dim=-1)
