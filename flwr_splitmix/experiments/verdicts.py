"""Verdicts on a paper's claim that one place of a table is below another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Literal

Verdict = Literal["agrees", "disagrees", "not run", "not offered"]

BySeed = Mapping[int, float]
"""Values of a place, by seed."""


def judged(low: BySeed, high: BySeed, slack: float = 0.0) -> tuple[Verdict, float | None]:
    """Return whether the mean of `low` is below that of `high` plus `slack`, and by how much.

    Means are over the seeds that both have, since other seeds have other data and other weights.
    Only if they have none in common, each mean is over all seeds of its own.

    Parameters
    ----------
    low, high
        Values of the place that is claimed to be lower, and of the one claimed to be higher.
    slack
        Number by which the lower one may exceed the other, in the units of the values.

    Returns
    -------
    The verdict, and the margin: the mean of `high` plus `slack` minus the mean of `low`; "not run"
    and None if a place has no value.
    """
    if not low or not high:
        return "not run", None
    both = common_seeds(low, high)
    below = statistics.fmean(low[seed] for seed in both or low)
    above = statistics.fmean(high[seed] for seed in both or high)
    margin = above + slack - below
    if math.isnan(margin):
        return "not run", None
    return "agrees" if margin > 0 else "disagrees", margin


def common_seeds(low: BySeed, high: BySeed) -> list[int]:
    """Return the seeds that both places have, in order."""
    return sorted(low.keys() & high.keys())
