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

from flwr_splitmix.attacks.intervals import Measure, mean_measure
from flwr_splitmix.attacks.texts.releasing import TextOrigin
from flwr_splitmix.attacks.texts.view import PublicTexts, TextGuess
from flwr_splitmix.scoring.answers import meteor, rouge_l
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["TextFloors", "TextScored", "score_texts"]

Row = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


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
    _sampled: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def guesses(self, length: int, number: int, draw: int = 0) -> dict[str, Tensor]:
        """Return each floor's guess at a text of `length` tokens: int64 (length,).

        Parameters
        ----------
        number
            The text's number.
        draw
            Which guess at this text: each has other random words, the next most frequent one (over
            again after the last), and another text of the model.
        """
        frequent = self._frequent
        seed = derive_seed(self.seed, "floor", number, draw) if draw else self.seed + number
        rng = torch.Generator().manual_seed(seed)
        random = torch.randint(self.parts.vocab_size, (length,), generator=rng)
        blind = {
            "random token": random,
            "most frequent token": torch.full((length,), frequent[draw % len(frequent)]),
        }
        if self.parts.task == "generation":
            blind["language model"] = self._text(length, rng, number, draw)
        return blind

    @cached_property
    def _frequent(self) -> list[int]:
        """All tokens of the public texts, the most frequent first."""
        counted = Counter(int(i) for text in self.public for i in text if int(i) != self.begin)
        return [token for token, _ in counted.most_common()]

    def _text(self, length: int, rng: torch.Generator, number: int, draw: int) -> Tensor:
        kept = self._sampled.get((number, draw))
        if kept is None or len(kept) < length:
            kept = self._sampled[number, draw] = self._sample(length, rng, number)
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
        own = [guess for guess in guesses if guess.release == number]
        if not own:
            continue
        scored = [(_score(guess.ids, origin, floors.begin, decode), guess) for guess in own]
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
            {
                name: _score(guess, origin, floors.begin, decode)
                for name, guess in floors.guesses(length, number, draw).items()
            }
            for draw in range(len(own))
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
    """Return what the best of several guesses is chosen by."""
    return score.rouge_l, score.accuracy


def _score(guess: Tensor, origin: TextOrigin, begin: int | None, decode: Decode) -> _Score:
    """Score a guess (T,) at the text's places."""
    ids, read = origin.ids.cpu(), guess.cpu()[origin.places.cpu()]
    if begin is not None and int(ids[0]) == begin:
        ids, read = ids[1:], read[1:]
    right = float((read == ids).double().mean()) if len(ids) else 1.0
    said, true = [decode(read.tolist())], [decode(ids.tolist())]
    return _Score(right, rouge_l(said, true), meteor(said, true))
