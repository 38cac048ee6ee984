"""Means with confidence intervals, and the ROC curve of a binary attack."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flwr_splitmix.attacks.scoring.resampling import (
    MIN_GROUPS,
    draws,
    mean_interval,
    never_seen,
    rows_by_group,
    tail_of,
)

RATES = {"TPR at 1 % FPR": 100, "TPR at 0.1 % FPR": 1000}
"""True-positive rates; of how many negatives one may be a false positive."""
MIN_ALLOWED = 10
"""Least number of allowed false positives: with m of n, a guess at random reaches not m / n but
(m + 1) / (n + 1), twice as much for m = 1, a tenth more for m = 10."""

BY_BATCH = "AUC by batch"
"""Name of the mean over batches of max(AUC, 1 - AUC)."""
PERMUTATIONS = 400
"""Number of permutations of a batch's labels, for the floor of that mean."""


@dataclass(frozen=True)
class Measure:
    """One metric of an attack over all its samples.

    Parameters
    ----------
    metric, value
        Its name, and the mean over samples, or a value without samples (an AUC).
    low, high
        The 95 % bootstrap interval of the value. With too few groups it reaches the floor.
    floor
        The best value reached without the victims' releases.
    median, worst
        The median of the samples, and the threshold of the 5 % that leak most; None without
        samples.
    lower_is_stronger
        Whether a low value means a strong attack, as for an error.
    main
        Whether the gate uses this metric.
    samples, groups
        The number of samples, and of groups of them that do not depend on each other: what is
        resampled. 0 groups in results from before these were kept.
    """

    metric: str
    value: float
    low: float
    high: float
    floor: float
    median: float | None = None
    worst: float | None = None
    lower_is_stronger: bool = False
    main: bool = False
    samples: int = 0
    groups: int = 0

    @property
    def beats_floor(self) -> bool:
        """Whether the whole interval is beyond the floor."""
        return self.high < self.floor if self.lower_is_stronger else self.low > self.floor

    def to_json(self) -> dict[str, Any]:
        """Return the measure as plain values."""
        return asdict(self)


def mean_measure(
    metric: str,
    samples: np.ndarray,
    floor: float,
    *,
    lower_is_stronger: bool = False,
    main: bool = False,
    share: bool = False,
    within: Sequence[Sequence[Hashable]] = (),
    seed: int = 0,
) -> Measure:
    """Return the mean of samples (n,), n >= 1, with a bootstrap interval (percentile).

    Parameters
    ----------
    share
        Whether samples are between 0 and 1.
    within
        Each entry names the group of every sample, of which whole groups are resampled; of
        several entries the lowest and highest ends count. Without any, each sample is a group.
    """
    values = np.asarray(samples, dtype=np.float64)
    groupings = [rows_by_group(names) for names in within or [range(len(values))]]
    ends = [mean_interval(values, rows, share=share, seed=seed) for rows in groupings]
    groups = min(map(len, groupings))
    low, high = _reaching_floor_if_few(
        min(e[0] for e in ends), max(e[1] for e in ends), floor, groups
    )
    return Measure(
        metric,
        float(values.mean()),
        low,
        high,
        floor,
        median=float(np.median(values)),
        worst=float(np.quantile(values, 0.05 if lower_is_stronger else 0.95)),
        lower_is_stronger=lower_is_stronger,
        main=main,
        samples=len(values),
        groups=groups,
    )


def _reaching_floor_if_few(
    low: float, high: float, floor: float, groups: int
) -> tuple[float, float]:
    """Return an interval that reaches the floor if its groups are too few to exclude it."""
    return (low, high) if groups >= MIN_GROUPS else (min(low, floor), max(high, floor))


def curve_measures(
    scores: np.ndarray,
    positive: np.ndarray,
    *,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    either_way: bool = False,
) -> list[Measure]:
    """Return AUC and true-positive rates at low false-positive rates of a binary attack.

    A rate is left out where it allows fewer than ten false positives: at 1 % below 1,000 groups of
    the negative class, at 0.1 % below 10,000. Its floor is what scores at random reach on average.

    Parameters
    ----------
    scores
        (n,), higher for the positive class.
    positive
        bool (n,); both classes must be present.
    groups
        The group of each example; within each class whole groups are resampled. None makes each
        example a group.
    either_way
        Use max(AUC, 1 - AUC): the attacker does not know which side is positive. The side is
        chosen once, by all examples, so that the interval of an attack at chance contains 0.5.
        It is wider for that choice: of 97.5 %, so that noise beats 0.5 no more often.

    Raises
    ------
    ValueError
        If a class is missing, or a score is not finite.
    """
    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if positive.all() or not positive.any():
        raise ValueError("an AUC needs examples of both classes")
    if not np.isfinite(scores).all():
        raise ValueError("an AUC needs finite scores")

    everyone, reached = np.arange(len(scores)), _curve(scores, positive)
    if either_way and reached(everyone)[0] < 0.5:
        reached = _curve(-scores, positive)

    names = range(len(scores)) if groups is None else groups
    classes = [
        [at[group] for group in rows_by_group([names[int(i)] for i in at])]
        for at in (np.flatnonzero(positive), np.flatnonzero(~positive))
    ]
    fewest, sides = min(map(len, classes)), 2 if either_way else 1
    tail = tail_of(fewest, sides)
    number = min(max(200, round(5 / tail)), 2000)  # five values beyond each end
    rng = np.random.default_rng(seed)
    drawn = np.array([reached(rows) for rows in draws(classes, number, rng)])
    lows, highs = np.quantile(drawn, [tail, 1 - tail], axis=0)
    missed = never_seen(fewest, sides)
    negatives = len(classes[1])
    floors = {"AUC": 0.5} | {
        name: (negatives // of + 1) / (negatives + 1)
        for name, of in RATES.items()
        if negatives // of >= MIN_ALLOWED
    }
    measures = []
    for i, (name, floor) in enumerate(floors.items()):
        value, low, high = reached(everyone)[i], float(lows[i]), float(highs[i])
        if np.ptp(drawn[:, i]) == 0:
            low, high = value * (1 - missed), value + (1 - value) * missed
        low, high = _reaching_floor_if_few(low, high, floor, fewest)
        measures.append(
            Measure(
                name, value, low, high, floor, main=name == "AUC", samples=len(scores),
                groups=sum(map(len, classes)),
            )
        )  # fmt: skip
    return measures


def batch_curve_measure(
    scores: np.ndarray, positive: np.ndarray, batches: Sequence[Hashable], *, seed: int = 0
) -> Measure | None:
    """Return the mean over batches of max(AUC, 1 - AUC): each has its own side.

    That choice raises chance above 0.5, the more the smaller batches are. So the floor is the mean
    that permuted labels reach, each batch's among its own rows. Whole batches are resampled.

    Parameters
    ----------
    scores
        (n,), finite.
    positive
        bool (n,).
    batches
        The batch of each example. One whose examples are all of one class is left out.

    Returns
    -------
    The measure, whose samples are batches; None if no batch has both classes.

    Source: our reading of DP-CutMixSL, figure 9, which does not say how batches are put together.
    """
    from scipy.stats import rankdata  # an extra

    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    rng = np.random.default_rng(seed)
    reached, chance = [], []
    for rows in rows_by_group(batches):
        truth = positive[rows]
        if truth.all() or not truth.any():
            continue
        labels = np.concatenate(
            [truth[None], rng.permuted(np.tile(truth, (PERMUTATIONS, 1)), axis=1)]
        )
        ones, zeros = truth.sum(), (~truth).sum()
        # The Mann-Whitney statistic; equal scores share their mean rank.
        areas = ((labels * rankdata(scores[rows])).sum(1) - ones * (ones + 1) / 2) / (ones * zeros)
        either = np.maximum(areas, 1 - areas)
        reached.append(either[0])
        chance.append(either[1:].mean())
    if not reached:
        return None
    return mean_measure(BY_BATCH, np.array(reached), float(np.mean(chance)), share=True, seed=seed)


def _curve(
    scores: np.ndarray, positive: np.ndarray
) -> Callable[[np.ndarray], tuple[float, float, float]]:
    """Return a function that gives AUC and true-positive rates of the examples at any positions.

    The scores are sorted once, for all resamples.
    """
    order = np.argsort(-scores, kind="stable")
    lasts = np.flatnonzero(np.append(np.diff(scores[order]), 1))  # of the examples of each score

    def reached(rows: np.ndarray) -> tuple[float, float, float]:
        times = np.bincount(rows, minlength=len(scores))[order]
        passed = (np.cumsum(np.where(side[order], times, 0)) for side in (positive, ~positive))
        true, false = (np.append(0, count[lasts]) / count[-1] for count in passed)
        percent, thousandth = (
            float(true[false <= 1 / of].max(initial=0.0)) for of in RATES.values()
        )
        area = float((np.diff(false) * (true[1:] + true[:-1]) / 2).sum())
        return area, percent, thousandth

    return reached
