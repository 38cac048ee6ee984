"""Reading texts word by word: the token whose hidden state under the base head is nearest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextAttack,
    TextReading,
    TextRelease,
    TextView,
    readings_of,
)
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["Reader", "ReaderAttack", "Vocabulary"]

CANDIDATES = 128
"""Number of tokens tried at a place, given what was read before it."""

_AT_ONCE = 2048


class Reader:
    """A base head, used as a table of tokens and to judge which token continues a text.

    Parameters
    ----------
    parts
        A decoder with a head.
    begin
        The token that begins every text; None reads a text's first token like any other.
    candidates
        Number of tokens that the table picks for a place from the vocabulary; the head judges
        these, given what was read before.
    """

    def __init__(
        self, parts: LanguageParts, begin: int | None, *, candidates: int = CANDIDATES
    ) -> None:
        assert parts.head is not None
        self.head = parts.head.eval()
        self.begin = begin
        self.candidates = min(candidates, parts.vocab_size)
        self.behind = 0 if begin is None else 1
        self.deep = parts.cut.head > 0
        with torch.no_grad():
            words = torch.arange(parts.vocab_size)
            rows = [self._alone(part)[:, -1] for part in torch.split(words, _AT_ONCE)]
        self.table = torch.cat(rows)
        self._directions = F.normalize(self.table.float(), dim=-1)

    def _alone(self, words: Tensor) -> Tensor:
        """Return hidden states of one-token texts, after the beginning token if there is one."""
        ids = words.unsqueeze(1)
        if self.begin is not None:
            ids = torch.cat([torch.full_like(ids, self.begin), ids], dim=1)
        states: Tensor = self.head(ids)
        return states

    @torch.no_grad()
    def read(self, hidden: Tensor) -> tuple[Tensor, float]:
        """Read a text's tokens from estimates of its hidden states, up to scale and sign.

        Parameters
        ----------
        hidden
            (T, d), floating.

        Returns
        -------
        int64 (T,), and the mean cosine between reading and estimate: if it is one, the text is
        exact.
        """
        own = hidden.detach().float()
        cosines = F.normalize(own, dim=-1) @ self._directions.T
        if float((-cosines).amax(1).mean()) > float(cosines.amax(1).mean()):
            own, cosines = -own, -cosines
        if self.deep:
            return self._in_turn(own, cosines.topk(self.candidates, dim=1).indices)
        # Embeddings of tokens never seen in training share a direction; with a known scale, they
        # differ in length.
        best = self.table.float()[cosines.argmax(1)]
        scale = ((own * best).sum(1) / best.square().sum(1))[self.behind :].median()
        distances = torch.cdist((own / scale).double(), self.table.double())
        ids = self._begun(distances.argmin(1))
        fits = cosines.gather(1, ids[:, None]).squeeze(1)
        return ids, float(fits[self.behind :].mean())

    def _begun(self, ids: Tensor) -> Tensor:
        if self.begin is not None:
            ids[0] = self.begin
        return ids

    def _in_turn(self, own: Tensor, chosen: Tensor) -> tuple[Tensor, float]:
        """Choose each place's token by its state under the head, given the tokens before."""
        cache, read, fits = DynamicCache(), [], []
        for place, (state, words) in enumerate(zip(own, chosen, strict=True)):
            if place == 0 and self.begin is not None:
                words = words.new_tensor([self.begin])
            if place:
                cache.batch_repeat_interleave(len(words))
            mask = torch.ones(len(words), place + 1, dtype=torch.int64)
            states = self.head(words[:, None], mask, cache)[:, 0]
            fit, best = F.cosine_similarity(states, state[None], dim=1).max(0)
            read.append(words[best])
            fits.append(fit)
            cache.batch_select_indices(best.reshape(1))
        return torch.stack(read), float(torch.stack(fits)[self.behind :].mean())


class ReaderAttack(TextAttack):
    """An attack that estimates hidden states and reads them with a `Reader`."""

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Make the table of all tokens."""
        known = view.knowledge
        self.reader = Reader(known.parts(), known.begin)


class Vocabulary(ReaderAttack):
    """Read every message, and their mean, place by place.

    At cut 0 each place's token is the one whose embedding has the state's direction. After layers,
    a token's state depends on those before it, so the text is read from left to right: among the
    tokens whose state alone is near, the one whose state given the tokens before is nearest.

    It needs no training and no gradient. It uses the base model's head, from which a fine-tuned
    head differs slightly.
    """

    name = "vocabulary"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder"})
    source = "after arXiv 2505.18332; reading from left to right is ours"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message and their mean."""
        for way, message in readings_of(release.messages).items():
            yield *self.reader.read(message), way
