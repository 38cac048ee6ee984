"""Reading hidden states as words with a head: the shared last step of several attacks."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from flwr_splitmix.attacks.texts.word_pairs import WordPairs
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["WordReader"]

CANDIDATES = 24
"""Words that the table gives for a place at each query."""

CORRECTIONS = 3
"""How often the table is queried again, without what the words before add to a state."""

SHARPNESS = 6.0
"""A word's log likelihood, up to a constant: this times its cosine, over 1 - the mean cosine."""

MIN_FIT = 0.5
"""Least mean cosine of a first reading that is followed by a second one, with word pairs.

Below it the states reveal nothing, and a second reading would be the text that is likely anyway.
"""

EXACT_FIT = 0.9999
"""Mean cosine from which on a first reading is the last: word pairs would not change it."""

EXACT_BEAM_WIDTH, LIKELY_BEAM_WIDTH = 2, 4
"""Hypotheses that the beam search keeps: in a fit by states alone, and in one with word pairs."""

_WORDS_AT_ONCE = 2048


class WordReader:
    """A head, used as a table of words and to judge which word continues a text.

    Behind layers a word's state depends on the words before it, which move the states of all words
    nearly alike. So the table, which has the state of each word alone, is queried again without
    that shift, as it is for the best word so far, and the head judges all words that it gave.

    Parameters
    ----------
    parts
        A decoder with a head.
    begin
        The token that begins every text; None reads a text's first token like any other.
    candidates
        Words that the table gives for a place at each query.
    corrections
        How often the table is queried again; 0 judges the words whose state alone is near.
    """

    def __init__(
        self,
        parts: LanguageParts,
        begin: int | None,
        *,
        candidates: int = CANDIDATES,
        corrections: int = CORRECTIONS,
    ) -> None:
        assert parts.head is not None
        self.head = parts.head.eval()
        self.begin = begin
        self.candidates = min(candidates, parts.vocab_size)
        self.behind = 0 if begin is None else 1
        self.deep = parts.cut.head > 0
        self.corrections = corrections if self.deep else 0
        with torch.no_grad():
            words = torch.arange(parts.vocab_size)
            rows = [self._alone(part)[:, -1] for part in torch.split(words, _WORDS_AT_ONCE)]
        self.table = torch.cat(rows).float()
        self._halves = self.table.square().sum(1) / 2
        self._directions = F.normalize(self.table, dim=-1)

    def _alone(self, words: Tensor) -> Tensor:
        """Return hidden states of one-token texts, after the beginning token if there is one."""
        ids = words.unsqueeze(1)
        if self.begin is not None:
            ids = torch.cat([torch.full_like(ids, self.begin), ids], dim=1)
        states: Tensor = self.head(ids)
        return states

    def cosines(self, hidden: Tensor) -> Tensor:
        """Return the cosines of hidden states (..., d) with those of each word alone: (..., V)."""
        return F.normalize(hidden.detach().float(), dim=-1) @ self._directions.T

    @torch.no_grad()
    def read(self, hidden: Tensor, pairs: WordPairs | None = None) -> tuple[Tensor, float]:
        """Read a text's tokens from estimates of its hidden states, up to scale and sign.

        Parameters
        ----------
        hidden
            (T, d), floating.
        pairs
            How likely words follow each other: behind layers the text is read once more with
            these, which count the more, the less the first reading's states fit, unless these do
            not fit at all.

        Returns
        -------
        int64 (T,), and the mean cosine between reading and estimate: if it is one, the text is
        exact.
        """
        estimates = hidden.detach().float()
        cosines = self.cosines(estimates)
        if float((-cosines).amax(1).mean()) > float(cosines.amax(1).mean()):
            estimates, cosines = -estimates, -cosines
        if self.deep:
            ids, fit = self._beam_search(estimates, cosines, _Fit())
            if pairs is None or not MIN_FIT <= fit < EXACT_FIT:
                return ids, fit
            sharpness = SHARPNESS / max(1 - fit, 1e-6)
            return self._beam_search(estimates, sharpness * cosines, _LikelyFit(pairs, sharpness))
        # Embeddings of tokens never seen in training share a direction; with a known scale, they
        # differ in length.
        best = self.table[cosines.argmax(1)]
        scale = ((estimates * best).sum(1) / best.square().sum(1))[self.behind :].median()
        distances = torch.cdist((estimates / scale).double(), self.table.double())
        ids = distances.argmin(1)
        if self.begin is not None:
            ids[0] = self.begin
        fits = cosines.gather(1, ids[:, None]).squeeze(1)
        return ids, float(fits[self.behind :].mean())

    @torch.no_grad()
    def read_noisy(self, hidden: Tensor, noise: float, pairs: WordPairs) -> tuple[Tensor, float]:
        """Read the likeliest text from hidden states with Gaussian noise.

        Parameters
        ----------
        hidden
            (T, d), floating, with their scale and sign.
        noise
            Standard deviation of the noise.
        pairs
            How likely words follow each other.

        Returns
        -------
        As `read`.
        """
        estimates = hidden.detach().float()
        near = (estimates @ self.table.T - self._halves) / noise**2
        return self._beam_search(estimates, near, _NoisyFit(pairs, noise**2))

    def _beam_search(self, estimates: Tensor, near: Tensor, fit: _Fit) -> tuple[Tensor, float]:
        """Read the text that fits best by beam search from left to right.

        `near` (T, V) holds the scores of words alone; a hypothesis is a beginning of the text.
        """
        texts, cache = torch.zeros(1, 0, dtype=torch.int64), DynamicCache()
        scores, cosines = estimates.new_zeros(1), estimates.new_zeros(1)
        for place, state in enumerate(estimates):
            if place == 0 and self.begin is not None:
                words = torch.tensor([[self.begin]])
                states, fits = self._states(words, cache), estimates.new_zeros(1, 1)
            else:
                words, states, fits = self._expanded(texts, state, near[place], fit, cache)
            total = scores[:, None] + fits
            width = min(fit.beam_width, int(total.isfinite().sum()))
            scores, chosen = total.flatten().topk(width)
            rows, read = chosen // words.shape[1], words.flatten()[chosen]
            if place >= self.behind:
                chosen_states = states.flatten(0, 1)[chosen]
                cosines = cosines[rows] + F.cosine_similarity(chosen_states, state[None], dim=1)
            texts = torch.cat([texts[rows], read[:, None]], dim=1)
            if self.deep:
                if place:
                    cache.batch_select_indices(rows)
                self.head(read[:, None], torch.ones_like(texts), cache)
        return texts[0], float(cosines[0]) / max(1, len(estimates) - self.behind)

    def _expanded(
        self, texts: Tensor, state: Tensor, near: Tensor, fit: _Fit, cache: DynamicCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return words (b, n) that may continue b hypotheses, their states, and their fits."""
        likely = fit.likely(texts)
        rankings = [near.expand(len(texts), -1)] if likely is None else [near + likely, likely]
        words = torch.cat([ranking.topk(self.candidates).indices for ranking in rankings], dim=1)
        states, every = self._states(words, cache), torch.arange(len(texts))
        before = None
        for _ in range(self.corrections):
            best = fit.of(states, state).argmax(1)
            if before is not None and bool((best == before).all()):
                break  # the table would give the same words again
            before, best_states = best, states[every, best]
            shift = best_states - self.table[words[every, best]]
            aims = fit.scaled(state, best_states) - shift
            again = aims @ self.table.T - self._halves
            if likely is not None:
                again = fit.weight(best_states) * again + likely
            more = again.topk(self.candidates).indices
            words = torch.cat([words, more], dim=1)
            states = torch.cat([states, self._states(more, cache)], dim=1)
        fits = fit.of(states, state)
        if likely is not None:
            fits = fits + likely.gather(1, words)
        ordered, places = words.sort(dim=1, stable=True)
        twice = torch.zeros_like(words, dtype=torch.bool)
        twice.scatter_(1, places[:, 1:], ordered[:, 1:] == ordered[:, :-1])
        return words, states, fits.masked_fill(twice, -torch.inf)

    def _states(self, words: Tensor, cache: DynamicCache) -> Tensor:
        """Return the states (b, n, d) of words (b, n) behind the b hypotheses in the cache."""
        if not self.deep:
            return self.table[words]
        cache_copy, before = copy.deepcopy(cache), int(cache.get_seq_length())
        if before:
            cache_copy.batch_repeat_interleave(words.shape[1])
        mask = torch.ones(words.numel(), before + 1, dtype=torch.int64)
        states: Tensor = self.head(words.reshape(-1, 1), mask, cache_copy)
        return states.view(*words.shape, -1)


class _Fit:
    """How well states (b, n, d) fit an estimate (d,) of one, up to scale: by cosine."""

    beam_width = EXACT_BEAM_WIDTH

    def likely(self, texts: Tensor) -> Tensor | None:
        """Return how likely words (b, V) are behind texts (b, T), before anything is seen."""
        return None

    def weight(self, states: Tensor) -> Tensor:
        """Return the fit's loss for each half of a squared distance from states (b, d)."""
        return states.new_ones(())

    def of(self, states: Tensor, estimate: Tensor) -> Tensor:
        """Return fits (b, n)."""
        return F.cosine_similarity(states, estimate.expand_as(states), dim=2)

    def scaled(self, estimate: Tensor, states: Tensor) -> Tensor:
        """Return the estimate with the scale of states (b, d)."""
        return (states @ estimate / estimate.square().sum().clamp(min=1e-12))[:, None] * estimate


class _LikelyFit(_Fit):
    """Fit by words before, and by cosine: this times the sharpness is a log likelihood."""

    beam_width = LIKELY_BEAM_WIDTH

    def __init__(self, pairs: WordPairs, sharpness: float) -> None:
        self.pairs, self.sharpness = pairs, sharpness

    def likely(self, texts: Tensor) -> Tensor:
        last = texts[:, -1] if texts.shape[1] else torch.full((len(texts),), -1)
        return self.pairs.log_shares(last)

    def weight(self, states: Tensor) -> Tensor:
        return self.sharpness / states.square().sum(1, keepdim=True).clamp(min=1e-12)

    def of(self, states: Tensor, estimate: Tensor) -> Tensor:
        return self.sharpness * super().of(states, estimate)


class _NoisyFit(_LikelyFit):
    """Fit by words before, and by the likelihood under Gaussian noise of variance `square`."""

    def __init__(self, pairs: WordPairs, square: float) -> None:
        super().__init__(pairs, 1 / square)

    def weight(self, states: Tensor) -> Tensor:
        return states.new_tensor(self.sharpness)

    def of(self, states: Tensor, estimate: Tensor) -> Tensor:
        return -self.sharpness * (states - estimate).square().sum(2) / 2

    def scaled(self, estimate: Tensor, states: Tensor) -> Tensor:
        return estimate
