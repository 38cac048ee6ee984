"""Scores of guesses at texts: token accuracy, ROUGE-L, METEOR, exact recovery; with floors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.scoring.intervals import Measure, mean_measure
from flwr_splitmix.attacks.texts.releasing import TextOrigin
from flwr_splitmix.attacks.texts.view import PublicTexts, TextGuess
from flwr_splitmix.scoring.answers import meteor, rouge_l
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["TextFloors", "TextScored", "score_texts"]

Row = dict[str, Any]
Decode = Callable[[Sequence[int]], str]

_LOGITS = 2**26
"""Greatest number of logits, a quarter of a GB, that texts written side by side may take."""


@dataclass(frozen=True)
class TextFloors:
    """Guesses without any release: random words, a frequent one, a decoder's own text.

    Parameters
    ----------
    parts
        All parts of the base model; one for classification writes no text of its own.
    public
        Public texts, which give the most frequent words and the beginnings of sampled texts.
    begin
        The token that begins every text; None if there is none.
    """

    parts: LanguageParts
    public: PublicTexts
    begin: int | None = None
    seed: int = 0
    _sampled: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def guesses(self, length: int, number: int, draws: int = 1) -> list[dict[str, Tensor]]:
        """Return each floor's guesses at a text of `length` tokens: int64 (length,).

        Parameters
        ----------
        number
            The text's number.
        draws
            Number of guesses at this text: each has other random words, the next most frequent one
            (over again after the last), and another text of the model.
        """
        frequent = self._frequent
        generators = [self._generator(number, draw) for draw in range(draws)]
        blind = [
            {
                "random token": torch.randint(self.parts.vocab_size, (length,), generator=rng),
                "most frequent token": torch.full((length,), frequent[draw % len(frequent)]),
            }
            for draw, rng in enumerate(generators)
        ]
        if self.parts.task == "generation":
            for guess, written in zip(blind, self._texts(length, generators, number), strict=True):
                guess["language model"] = written
        return blind

    def _generator(self, number: int, draw: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, "floor", number, draw))

    @cached_property
    def _frequent(self) -> list[int]:
        """All tokens of the public texts, the most frequent first."""
        counted = Counter(int(i) for text in self.public for i in text if int(i) != self.begin)
        return [token for token, _ in counted.most_common()]

    def _texts(self, length: int, generators: Sequence[torch.Generator], number: int) -> Tensor:
        """Return the model's texts, (draws, length)."""
        sampled = self._sampled.get(number)
        if sampled is None or sampled.shape[0] < len(generators) or sampled.shape[1] < length:
            at_once = max(1, _LOGITS // (length * self.parts.vocab_size))
            parts = [
                self._sample(length, generators[first : first + at_once], number)
                for first in range(0, len(generators), at_once)
            ]
            sampled = self._sampled[number] = torch.cat(parts)
        return sampled[: len(generators), :length]

    @torch.no_grad()
    def _sample(self, length: int, generators: Sequence[torch.Generator], number: int) -> Tensor:
        """Have the model write a text with each generator."""
        head, trunk, tail = self.parts.all_here()
        first = self.public[number % len(self.public)][:1] if self.begin is None else None
        ids = (torch.tensor([self.begin]) if first is None else first).repeat(len(generators), 1)
        while ids.shape[1] < length:
            mask = torch.ones_like(ids)
            shares = tail(trunk(head(ids, mask), mask), mask)[:, -1].softmax(1)
            drawn = [
                torch.multinomial(share, 1, generator=rng)
                for share, rng in zip(shares, generators, strict=True)
            ]
            ids = torch.cat([ids, torch.stack(drawn)], dim=1)
        return ids[:, :length]


@dataclass(frozen=True)
class TextScored:
    """One row per text, and the measures over all texts."""

    rows: list[Row]
    measures: list[Measure]

    def measure(self, metric: str) -> Measure:
        """Return a measure by its name."""
        return next(m for m in self.measures if m.metric == metric)


def score_texts(
    guesses: Sequence[TextGuess],
    origins: Sequence[TextOrigin],
    floors: TextFloors,
    decode: Decode,
    *,
    seed: int = 0,
) -> TextScored:
    """Score guesses at texts.

    A text may have several guesses: from each message, their mean, or each direction. The best
    one by ROUGE-L counts, as in the papers; the attack's most confident one is reported too. The
    floor of the best one is the best of as many blind guesses, chosen in the same way; that of
    the most confident one is a single blind guess.

    Parameters
    ----------
    origins
        Origins of the view's releases, in order.
    decode
        Turns tokens into text, for ROUGE-L and METEOR.

    Returns
    -------
    Measures "token accuracy" (fraction of the text's tokens read at their places; the main one),
    "ROUGE-L" (F, of words), "METEOR" (words and stems, no synonyms), "exact" (fraction of texts
    without an error), and for the most confident guess "token accuracy, picked" and "ROUGE-L,
    picked". The token that begins texts does not count.

    Raises
    ------
    ValueError
        If there is no guess.
    """
    if not guesses:
        raise ValueError("the attack made no guess: there is nothing to score")
    rows: list[Row] = []
    below: list[dict[str, _Score]] = []
    alone: list[dict[str, _Score]] = []
    for number, origin in enumerate(origins):
        text_guesses = [guess for guess in guesses if guess.release == number]
        if not text_guesses:
            continue
        scored = [
            (_score(guess.ids, origin, floors.begin, decode), guess) for guess in text_guesses
        ]
        reached, best = max(scored, key=lambda one: _rank(one[0]))
        picked, surest = max(scored, key=lambda one: one[1].confidence)
        rows.append(
            {
                "text": number,
                "tokens": len(origin.ids),
                "way": best.way,
                "token_accuracy": reached.accuracy,
                "rouge_l": reached.rouge_l,
                "meteor": reached.meteor,
                "exact": reached.exact,
                "picked_way": surest.way,
                "picked_token_accuracy": picked.accuracy,
                "picked_rouge_l": picked.rouge_l,
                "confidence": surest.confidence,
            }
        )
        length = int(origin.places.max()) + 1
        blind = [
            {name: _score(guess, origin, floors.begin, decode) for name, guess in drawn.items()}
            for drawn in floors.guesses(length, number, len(text_guesses))
        ]
        alone.append(blind[0])
        below.append({name: max((drawn[name] for drawn in blind), key=_rank) for name in blind[0]})

    def measured(
        metric: str, column: str, floor: Sequence[dict[str, _Score]], of: str, *, main: bool = False
    ) -> Measure:
        values = np.array([float(row[column]) for row in rows])
        least = max(float(np.mean([getattr(b[name], of) for b in floor])) for name in floor[0])
        return mean_measure(metric, values, least, main=main, share=True, seed=seed)

    return TextScored(
        rows,
        [
            measured("token accuracy", "token_accuracy", below, "accuracy", main=True),
            measured("ROUGE-L", "rouge_l", below, "rouge_l"),
            measured("METEOR", "meteor", below, "meteor"),
            measured("exact", "exact", below, "exact"),
            measured("token accuracy, picked", "picked_token_accuracy", alone, "accuracy"),
            measured("ROUGE-L, picked", "picked_rouge_l", alone, "rouge_l"),
        ],
    )


@dataclass(frozen=True)
class _Score:
    accuracy: float
    rouge_l: float
    meteor: float

    @property
    def exact(self) -> bool:
        return self.accuracy == 1.0


def _rank(score: _Score) -> tuple[float, float]:
    """Return the key that the best of several guesses is chosen by."""
    return score.rouge_l, score.accuracy


def _score(guess: Tensor, origin: TextOrigin, begin: int | None, decode: Decode) -> _Score:
    """Score a guess (T,) at the text's places."""
    ids, read = origin.ids.cpu(), guess.cpu()[origin.places.cpu()]
    if begin is not None and int(ids[0]) == begin:
        ids, read = ids[1:], read[1:]
    right = float((read == ids).double().mean()) if len(ids) else 1.0
    guessed, true = [decode(read.tolist())], [decode(ids.tolist())]
    return _Score(right, rouge_l(guessed, true), meteor(guessed, true))
