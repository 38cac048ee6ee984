"""Scores of guesses at texts: token accuracy, ROUGE-L, METEOR, exact recovery; with floors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.intervals import Measure, mean_measure
from flwr_splitmix.attacks.texts.releasing import TextOrigin
from flwr_splitmix.attacks.texts.view import PublicTexts, TextGuess
from flwr_splitmix.scoring.answers import meteor, rouge_l
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["TextFloors", "TextScored", "score_texts"]

Row = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class TextFloors:
    """Guesses without any release: random words, the most frequent one, a model's own text.

    Parameters
    ----------
    parts
        All parts of the base model.
    public
        Public texts, which give the most frequent word and the beginnings of sampled texts.
    begin
        The token that begins every text; None if there is none.
    """

    parts: LanguageParts
    public: PublicTexts
    begin: int | None = None
    seed: int = 0
    _sampled: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def guesses(self, length: int, number: int) -> dict[str, Tensor]:
        """Return each floor's guess at a text of `length` tokens: int64 (length,)."""
        counted = Counter(int(i) for text in self.public for i in text if int(i) != self.begin)
        (most, _), *_ = counted.most_common(1)
        rng = torch.Generator().manual_seed(self.seed + number)
        random = torch.randint(self.parts.vocab_size, (length,), generator=rng)
        return {
            "random token": random,
            "most frequent token": torch.full((length,), most),
            "language model": self._text(length, rng, number),
        }

    def _text(self, length: int, rng: torch.Generator, number: int) -> Tensor:
        kept = self._sampled.get(number)
        if kept is None or len(kept) < length:
            kept = self._sampled[number] = self._sample(length, rng, number)
        return kept[:length]

    @torch.no_grad()
    def _sample(self, length: int, rng: torch.Generator, number: int) -> Tensor:
        head, trunk, tail = self.parts.all_here()
        first = self.public[number % len(self.public)][:1] if self.begin is None else None
        ids = torch.tensor([self.begin]) if first is None else first
        while len(ids) < length:
            mask = torch.ones(1, len(ids), dtype=torch.int64)
            logits = tail(trunk(head(ids[None], mask), mask), mask)[0, -1]
            drawn = torch.multinomial(logits.softmax(0), 1, generator=rng)
            ids = torch.cat([ids, drawn])
        return ids[:length]


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
    one by ROUGE-L counts, as in the papers; the attack's most confident one is reported too.

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
    below: list[dict[str, tuple[float, float, float]]] = []
    for number, origin in enumerate(origins):
        own = [guess for guess in guesses if guess.release == number]
        if not own:
            continue
        scored = [(_score(guess.ids, origin, floors.begin, decode), guess) for guess in own]
        (accuracy, rouge, words), best = max(scored, key=lambda one: (one[0][1], one[0][0]))
        picked, surest = max(scored, key=lambda one: one[1].confidence)
        rows.append(
            {
                "text": number,
                "tokens": len(origin.ids),
                "way": best.way,
                "token_accuracy": accuracy,
                "rouge_l": rouge,
                "meteor": words,
                "exact": accuracy == 1.0,
                "picked_way": surest.way,
                "picked_token_accuracy": picked[0],
                "picked_rouge_l": picked[1],
                "confidence": surest.confidence,
            }
        )
        length = int(origin.places.max()) + 1
        below.append(
            {
                name: _score(guess, origin, floors.begin, decode)
                for name, guess in floors.guesses(length, number).items()
            }
        )
    floor = [max(float(np.mean([b[n][i] for b in below])) for n in below[0]) for i in range(3)]

    def measured(metric: str, column: str, least: float, *, main: bool = False) -> Measure:
        values = np.array([float(row[column]) for row in rows])
        return mean_measure(metric, values, least, main=main, seed=seed)

    return TextScored(
        rows,
        [
            measured("token accuracy", "token_accuracy", floor[0], main=True),
            measured("ROUGE-L", "rouge_l", floor[1]),
            measured("METEOR", "meteor", floor[2]),
            measured("exact", "exact", 0.0),
            measured("token accuracy, picked", "picked_token_accuracy", floor[0]),
            measured("ROUGE-L, picked", "picked_rouge_l", floor[1]),
        ],
    )


def _score(
    guess: Tensor, origin: TextOrigin, begin: int | None, decode: Decode
) -> tuple[float, float, float]:
    """Return token accuracy, ROUGE-L and METEOR of a guess (T,) at the text's places."""
    ids, read = origin.ids.cpu(), guess.cpu()[origin.places.cpu()]
    if begin is not None and int(ids[0]) == begin:
        ids, read = ids[1:], read[1:]
    right = float((read == ids).double().mean()) if len(ids) else 1.0
    said, true = [decode(read.tolist())], [decode(ids.tolist())]
    return right, rouge_l(said, true), meteor(said, true)
