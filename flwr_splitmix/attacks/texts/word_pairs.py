"""How likely words follow each other, counted in public texts."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.view import PublicTexts

__all__ = ["WordPairs"]

PAIRS, WORDS, ANY = 0.6, 0.3, 0.1
"""Weights of the pairs of public texts, of their words, and of all words alike."""

_CACHED_WORDS = 512
"""Words whose followers are kept ready."""


class WordPairs:
    """The share of each word among those that follow another, smoothed.

    Parameters
    ----------
    texts
        Public texts.
    vocab_size
        V.

    Attributes
    ----------
    words
        int64 (v,): the words of the texts.
    """

    def __init__(self, texts: PublicTexts, vocab_size: int) -> None:
        after: dict[int, Counter[int]] = defaultdict(Counter)
        words: Counter[int] = Counter()
        for text in texts:
            tokens = text.tolist()
            words.update(tokens[1:])
            for word, following in itertools.pairwise(tokens):
                after[word][following] += 1
        self._after = dict(after)
        self.words = torch.tensor(sorted(words), dtype=torch.int64)
        shares = torch.zeros(vocab_size)
        shares[self.words] = torch.tensor([float(words[word]) for word in self.words.tolist()])
        self._rest = WORDS * shares / shares.sum().clamp(min=1) + ANY / vocab_size
        self._rows: dict[int, Tensor] = {}

    def log_shares(self, before: Tensor, words: Tensor | None = None) -> Tensor:
        """Return log shares (b, n) of words int64 (n,) behind others (b,), where -1 is none.

        Without `words`, log shares of all V words.
        """
        rows = [self._row(word) for word in before.tolist()]
        return torch.stack(rows if words is None else [row[words] for row in rows])

    def _row(self, word: int) -> Tensor:
        if word not in self._rows:
            if len(self._rows) >= _CACHED_WORDS:
                self._rows.clear()
            row, following = self._rest.clone(), self._after.get(word)
            if following:
                counts = torch.tensor(list(following.values()), dtype=torch.float32)
                row[torch.tensor(list(following))] += PAIRS * counts / counts.sum()
            self._rows[word] = (row / row.sum()).log()
        return self._rows[word]
