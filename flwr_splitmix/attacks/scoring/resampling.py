"""Bootstrap intervals of means over groups of samples that depend on each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

CONFIDENCE_LEVEL = 0.95
RESAMPLES = 1000
MIN_GROUPS = 6
"""Least number of groups that can decide: five fair coins all fall alike one time in 16."""
MANY_GROUPS = 30
"""Number of groups from which a percentile interval is wide enough as it is."""

_AT_ONCE = 100


def rows_by_group(groups: Sequence[Hashable]) -> list[np.ndarray]:
    """Return the positions of each group's samples, groups in the order of their first samples."""
    rows: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        rows.setdefault(group, []).append(position)
    return [np.array(positions) for positions in rows.values()]


def tail_of(number: int, sides: int = 1) -> float:
    """Return the share of resampled values beyond each end of an interval.

    Parameters
    ----------
    number
        Number of groups. Below `MANY_GROUPS` they vary less among themselves than their source
        does, and the tails shrink: "expanded percentiles" (Hesterberg 2015, What teachers should
        know about the bootstrap, section 4.4).
    sides
        Number of sides between which the data have chosen; their errors add up (Bonferroni).
    """
    from scipy.special import ndtr, stdtrit  # an extra

    tail = (1 - CONFIDENCE_LEVEL) / 2 / sides
    if number >= MANY_GROUPS or number < 2:
        return tail
    return float(ndtr(np.sqrt(number / (number - 1)) * stdtrit(number - 1, tail)))


def never_seen(number: int, sides: int = 1) -> float:
    """Return the largest share of groups that `number` of them may all have missed.

    Source: Clopper and Pearson 1934, for outcomes that are all alike.
    """
    return float(1 - ((1 - CONFIDENCE_LEVEL) / 2 / sides) ** (1 / number))


def of_alike(share: float, number: int) -> tuple[float, float]:
    """Return the interval of a share that all of `number` groups have.

    Source: Clopper and Pearson 1934, for that share of as many coins.
    """
    from scipy.special import betaincinv  # an extra

    successes, rest, tail = share * number, (1 - share) * number, (1 - CONFIDENCE_LEVEL) / 2
    low = 0.0 if successes <= 0 else float(betaincinv(successes, rest + 1, tail))
    high = 1.0 if rest <= 0 else float(betaincinv(successes + 1, rest, 1 - tail))
    return low, high


def mean_interval(
    values: np.ndarray, rows: Sequence[np.ndarray], *, share: bool, seed: int
) -> tuple[float, float]:
    """Return the 95 % percentile interval of a mean, by drawing groups.

    With a group for each of at least `MANY_GROUPS` samples it is SciPy's `bootstrap`.

    Parameters
    ----------
    values
        float64 (n,), n >= 1.
    rows
        The positions of each group's samples.
    share
        Whether values are between 0 and 1. If all groups have the same mean, the interval is then
        that of Clopper and Pearson; else it is this mean alone.
    """
    number, alike = len(rows), np.ptp(values) == 0
    if not alike and (number < 2 or not np.isfinite(values).all()):
        return float(values.min()), float(values.max())
    sums = np.array([values[group].sum() for group in rows])
    counts = np.array([len(group) for group in rows], dtype=np.float64)
    means = sums / counts
    if alike or np.ptp(means) <= 1e-12 * np.abs(means).max():  # but for rounding
        value = float(values.mean())
        return of_alike(value, number) if share else (value, value)
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(0, RESAMPLES, _AT_ONCE):
        at = rng.integers(0, number, (_AT_ONCE, number))
        drawn.append(sums[at].sum(1) / counts[at].sum(1))
    tail = tail_of(number)
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def draws(
    classes: Sequence[Sequence[np.ndarray]], number: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the positions of resampled samples; of each class as many groups as it has."""
    for _ in range(number):
        yield np.concatenate(
            [groups[i] for groups in classes for i in rng.integers(0, len(groups), len(groups))]
        )
