"""Scores that clients computed themselves, combined into those of an evaluation."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping

from flwr_splitmix.scoring.texts import PERPLEXITY, perplexity_of
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.intake.ushape import MAX_NAMED, ReadScores

log = logging.getLogger("flwr.splitmix")


def combine(
    scored: Mapping[int, ReadScores], weights: Mapping[int, int], warned: SeenKeys
) -> dict[str, float]:
    """Return the scores of all clients together, by name; "accuracy" and "loss" among them.

    Each is the weighted mean over the clients that have it, except for the perplexity of the loss,
    which is that of the mean loss. A score is left out if fewer than half of the clients have it,
    or only one of several. If not all have it, a warning gives their number.

    Parameters
    ----------
    weights
        By client index, the number of its examples that count.
    warned
        Scores that a warning has named before; added to.
    """
    counts = Counter(name for read in scored.values() for name in read.scores)
    # One client of several adds no column; all report "accuracy" and "loss".
    least = max(min(2, len(scored)), len(scored) / 2)
    means = {name: _mean(name, scored, weights) for name in sorted(counts) if counts[name] >= least}
    _warn_of_few(counts, len(scored), means, warned)
    client_scores = [read.scores for read in scored.values()]
    if all(_is_of_loss(scores) for scores in client_scores):
        means[PERPLEXITY] = perplexity_of(means["loss"])
    return means


def _mean(name: str, scored: Mapping[int, ReadScores], weights: Mapping[int, int]) -> float:
    """Return a score's mean over the clients that have it, weighted by their examples."""
    scores = {c: read.scores[name] for c, read in scored.items() if name in read.scores}
    return sum(weights[c] * value for c, value in scores.items()) / sum(weights[c] for c in scores)


def _is_of_loss(scores: Mapping[str, float]) -> bool:
    """Return whether a client has a perplexity, and it is that of the loss: users have others."""
    of_loss = perplexity_of(scores["loss"])
    return math.isclose(scores.get(PERPLEXITY, math.nan), of_loss, rel_tol=1e-6)


def _warn_of_few(
    counts: Mapping[str, int], clients: int, means: Mapping[str, float], warned: SeenKeys
) -> None:
    """Log, once for each score, that not all clients have it."""
    few = [("few", name) for name in sorted(counts) if counts[name] < clients]
    for _, name in warned.add_all([key for key in few if key not in warned][:MAX_NAMED]):
        log.warning(
            "%r is a score of %d of the %d clients that were evaluated: %s",
            name,
            counts[name],
            clients,
            "the run has the mean over these" if name in means else "the run leaves it out",
        )
