"""Text generation with the three parts in one process, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from flwr_splitmix.segments.language.parts import LanguageParts


@torch.no_grad()
def generate(
    parts: LanguageParts,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> Tensor:
    """Continue texts in evaluation mode; the parts' modes are restored afterwards.

    Parameters
    ----------
    parts
        All three parts of a model for generation.
    ids, mask
        Token ids, int64 (b, T), padded on either side, and mask, 0/1 (b, T); None for no padding.
    max_new_tokens
        At least 1.
    temperature
        0: the most likely token. Else tokens are drawn from softmax(logits / temperature).
    top_k
        Number of the most likely tokens to draw from; None for all tokens.
    generator
        Generator of the draws, on the device of the logits; None for torch's own.
    eos_token_id
        Token or tokens that end a text; the rest of its row is filled with the first of them.

    Returns
    -------
    int64 (b, n), n <= max_new_tokens: only the new tokens, until all texts have ended.

    Raises
    ------
    ValueError
        If a part is missing, the model is not for generation, the mask's shape is not that of
        `ids`, a text is empty, or a number is out of range.
    """
    head, trunk, tail = parts.all_here()
    mask = torch.ones_like(ids) if mask is None else mask.to(ids.device).long()
    _check(parts, ids, mask, max_new_tokens, temperature, top_k)
    # Padding is moved to the left, so that every text's next token is in the next column.
    order = mask.argsort(dim=1, stable=True)
    new, mask = ids.gather(1, order), mask.gather(1, order)
    stops = torch.tensor(_stops(eos_token_id), dtype=torch.int64, device=ids.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    cache, tokens = DynamicCache(config=parts.config), []
    with _evaluating(head, trunk, tail):
        for _ in range(max_new_tokens):
            hidden = tail.stack(trunk(head(new, mask, cache), mask, cache), mask, cache)
            logits = tail.output(hidden[:, -1:])[:, -1].float()
            token = _choose(logits, temperature, top_k, generator).to(ids.device)
            if len(stops):
                token = torch.where(ended, stops[0], token)
                ended |= torch.isin(token, stops)
            tokens.append(token)
            if ended.all():
                break
            new = token[:, None]
            mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    return torch.stack(tokens, dim=1)


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]


def _check(
    parts: LanguageParts,
    ids: Tensor,
    mask: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
) -> None:
    if parts.task != "generation":
        raise ValueError(f"the model was cut for {parts.task}; only one for generation generates")
    if mask.shape != ids.shape or not mask.any(1).all():
        raise ValueError(
            f"the mask has shape {tuple(mask.shape)} for token ids of shape {tuple(ids.shape)}; "
            "expected the same shape, with a token in each text"
        )
    if max_new_tokens < 1 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ValueError(
            f"max_new_tokens is {max_new_tokens}, temperature {temperature}, top_k {top_k}; "
            "expected max_new_tokens >= 1, temperature >= 0 and top_k >= 1 or None"
        )
    if top_k is not None and temperature == 0:
        raise ValueError(f"top_k {top_k} is for sampling; it needs a temperature above 0")


def _stops(eos_token_id: int | Sequence[int] | None) -> list[int]:
    if eos_token_id is None:
        return []
    return [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)


@contextmanager
def _evaluating(*parts: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for part in parts for module in part.modules()]
    for part in parts:
        part.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
