"""Outputs of decoders: the last norm, and a language model's or a classifier's output layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class NextToken(nn.Module):
    """Map from hidden states (b, T, d) to the logits of the next tokens (b, T, V)."""

    def __init__(self, norm: nn.Module, lm_head: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.lm_head = lm_head

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits


class ScaledNextToken(NextToken):
    """The same with logits that are multiplied, divided and capped, in this order.

    Parameters
    ----------
    times, divided
        Factor and divisor of the logits; None for none.
    cap
        Logits become cap * tanh(logits / cap); None for no cap.
    """

    def __init__(
        self,
        norm: nn.Module,
        lm_head: nn.Module,
        *,
        times: float | None,
        divided: float | None,
        cap: float | None,
    ) -> None:
        super().__init__(norm, lm_head)
        self.times, self.divided, self.cap = times, divided, cap

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits = super().forward(hidden, mask)
        if self.times is not None:
            logits = logits * self.times
        if self.divided is not None:
            logits = logits / self.divided
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


class LastToken(nn.Module):
    """Map from hidden states (b, T, d) to class logits (b, L), read at the last unpadded token."""

    def __init__(self, norm: nn.Module, score: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.score = score

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits: Tensor = self.score(self.norm(hidden))
        if mask is None:
            return logits[:, -1]
        new = mask[:, -logits.shape[1] :].to(logits.device).long()
        last = (new * torch.arange(logits.shape[1], device=logits.device)).argmax(1)
        return logits[torch.arange(len(logits), device=logits.device), last]


def decoder_output(model: Any, norm: nn.Module) -> nn.Module:
    """Return the output module of a transformers decoder, for either task."""
    if hasattr(model, "score"):
        return LastToken(norm, model.score)
    return NextToken(norm, model.get_output_embeddings())
