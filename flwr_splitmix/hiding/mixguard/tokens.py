"""Secret tokens: random words between those of a text, known only to the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flwr_splitmix.seeding import secret_uniform
from flwr_splitmix.words import are, counted


class InsertedTokens(NamedTuple):
    """Texts with secret tokens, of width T' = T + count.

    Attributes
    ----------
    ids, mask
        (b, T'), of the dtypes they came in; the mask is 1 at secret tokens.
    positions
        int64 (b, T): the new position of each old place, increasing.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor


class SecretTokens:
    """Inserts `count` tokens, uniform over the vocabulary, at uniform places of each text.

    The places are a uniform subset of those of the longer text, between its special tokens:
    beginning (CLS, BOS) and end tokens (SEP, EOS) stay at the ends, as in the model's training.
    Padding stays where it was. The paper specifies neither.

    Parameters
    ----------
    count
        Secret tokens in each text; 0 changes nothing.
    vocab_size
        Ids are drawn from 0 to vocab_size - 1, except `special`.
    special
        Ids never drawn: CLS, SEP, BOS, EOS, padding, mask and the like.
    max_length
        Largest width that the model accepts.

    Raises
    ------
    ValueError
        If count is negative or no id is left to draw.

    Source: MixGuard, equation 24; 20 for classification, 40 for generation (appendix A.2).
    """

    def __init__(
        self, count: int, vocab_size: int, special: Sequence[int] = (), *, max_length: int = 512
    ) -> None:
        if count < 0:
            raise ValueError(f"count is {count}; it must be at least 0")
        self.count = count
        self.max_length = max_length
        self.special = torch.tensor(sorted(set(special)), dtype=torch.int64)
        everything = torch.arange(vocab_size)
        self._drawn_from = everything[~torch.isin(everything, self.special)]
        if not len(self._drawn_from):
            raise ValueError(
                f"vocab_size is {vocab_size}, of which {counted(len(self.special), 'id')} "
                f"{are(len(self.special))} special; at least one must be left to draw"
            )

    def draw(self, shape: Sequence[int]) -> Tensor:
        """Draw ids uniformly from the vocabulary without its special ones: int64, on the CPU."""
        return self._drawn_from[(secret_uniform(shape) * len(self._drawn_from)).long()]

    def insert(self, ids: Tensor, mask: Tensor) -> InsertedTokens:
        """Insert secret tokens into each text.

        Parameters
        ----------
        ids, mask
            (b, T), integers; the mask is 0 at padding, left or right.

        Raises
        ------
        ValueError
            If T + count exceeds `max_length`, shapes differ, or a text has no token.
        """
        batch, width = ids.shape
        if mask.shape != ids.shape:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}; it must be that of ids, {(batch, width)}"
            )
        if width + self.count > self.max_length:
            raise ValueError(
                f"{counted(width, 'token')} and {counted(self.count, 'secret one')} exceed "
                f"max_length {self.max_length}; cut the texts to {self.max_length - self.count}"
            )
        first, last = self._between_specials(ids, mask)
        places = torch.arange(width + self.count)
        inside = (places >= first[:, None]) & (places < last[:, None] + self.count)
        # The places of the `count` smallest of independent uniform numbers are a uniform subset.
        order = secret_uniform(inside.shape).masked_fill(~inside, 2.0).argsort(dim=1)
        secret = torch.zeros_like(inside)
        secret.scatter_(1, order[:, : self.count], value=True)
        positions = (~secret).nonzero()[:, 1].reshape(batch, width).to(ids.device)

        def widened(fill: Tensor | int, old: Tensor) -> Tensor:
            new = torch.empty(batch, width + self.count, dtype=old.dtype, device=old.device)
            new[:] = fill
            return new.scatter_(1, positions.to(old.device), old)

        drawn = self.draw(secret.shape).to(ids.device, ids.dtype)
        return InsertedTokens(widened(drawn, ids), widened(1, mask), positions)

    def remove(self, per_token: Tensor, positions: Tensor) -> Tensor:
        """Remove secret tokens from a per-token tensor.

        Parameters
        ----------
        per_token
            (b, T', ...): hidden states, logits, predicted ids.
        positions
            (b, T), as `insert` returned them.

        Returns
        -------
        (b, T, ...), inside the autograd graph.
        """
        rows = torch.arange(len(positions), device=per_token.device)[:, None]
        return per_token[rows, positions.to(per_token.device)]

    def _between_specials(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return where each text's own words begin and end (exclusive): int64 (b,) each."""
        real = mask.cpu() != 0
        if not real.any(1).all():
            raise ValueError("a text has no token; its mask is 0 everywhere")
        words = real & ~torch.isin(ids.cpu().long(), self.special)
        first = words.int().argmax(1)
        last = words.shape[1] - words.flip(1).int().argmax(1)
        # Keep a text's end token last: a decoder reads the class there.
        last -= (last == real.shape[1] - real.flip(1).int().argmax(1)).long()
        # In a text of special tokens only, secret tokens follow the first one.
        behind = real.int().argmax(1) + 1
        wordless = ~words.any(1)
        return torch.where(wordless, behind, first), torch.where(wordless, behind, last)
