"""Means with confidence intervals, and the ROC curve of a binary attack."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LEVEL = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Measure:
    """One metric of an attack over all its samples.

    Parameters
    ----------
    metric, value
        Its name, and the mean over samples, or a value without samples (an AUC).
    low, high
        The 95 % bootstrap interval of the value.
    floor
        The best value reached without the victims' releases.
    median, worst
        The median of the samples, and the threshold of the 5 % that leak most; None without
        samples.
    lower_is_stronger
        Whether a low value means a strong attack, as for an error.
    main
        Whether the gate uses this metric.
    samples
        The number of samples.
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

    @property
    def beats_floor(self) -> bool:
        """Whether the whole interval is beyond the floor."""
        return self.high < self.floor if self.lower_is_stronger else self.low > self.floor

    def to_json(self) -> dict[str, Any]:
        """Return the measure as plain values."""
        return asdict(self)


def passes_gate(unprotected: Measure) -> bool:
    """Return whether an attack counts: it must beat the floor on an unprotected method.

    Parameters
    ----------
    unprotected
        The attack's main measure on the unprotected method, with the same budget.
    """
    return unprotected.beats_floor


def mean_measure(
    metric: str,
    samples: np.ndarray,
    floor: float,
    *,
    lower_is_stronger: bool = False,
    main: bool = False,
    seed: int = 0,
) -> Measure:
    """Return the mean of samples (n,), n >= 1, with a bootstrap interval (SciPy, percentile)."""
    values = np.asarray(samples, dtype=np.float64)
    low, high = _interval(values, seed)
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
    )


def _interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    from scipy.stats import bootstrap  # slow to load

    if len(values) < 2 or np.ptp(values) == 0 or not np.isfinite(values).all():
        return float(values.min()), float(values.max())
    ends = bootstrap(
        (values,),
        np.mean,
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
        batch=100,
    ).confidence_interval
    return float(ends.low), float(ends.high)


def curve_measures(
    scores: np.ndarray, positive: np.ndarray, *, seed: int = 0, either_way: bool = False
) -> list[Measure]:
    """Return AUC and true-positive rates at low false-positive rates of a binary attack.

    Parameters
    ----------
    scores
        (n,), higher for the positive class.
    positive
        bool (n,); both classes must be present.
    either_way
        Use max(AUC, 1 - AUC): the attacker does not know which side is positive. The side is
        chosen once, by all examples, so that the interval of an attack at chance contains 0.5.

    Raises
    ------
    ValueError
        If a class is missing.
    """
    from sklearn.metrics import auc, roc_curve  # an extra

    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if positive.all() or not positive.any():
        raise ValueError("an AUC needs examples of both classes")

    if either_way and float(auc(*roc_curve(positive, scores)[:2])) < 0.5:
        scores = -scores

    def reached(rows: np.ndarray) -> tuple[float, float, float]:
        false, true, _ = roc_curve(positive[rows], scores[rows], drop_intermediate=False)
        percent, thousandth = (
            float(true[false <= limit].max(initial=0.0)) for limit in (0.01, 0.001)
        )
        return float(auc(false, true)), percent, thousandth

    rng, classes = (
        np.random.default_rng(seed),
        [np.flatnonzero(positive), np.flatnonzero(~positive)],
    )
    drawn = [
        reached(np.concatenate([rng.choice(own, len(own)) for own in classes])) for _ in range(200)
    ]
    tail = (1 - LEVEL) / 2
    lows, highs = np.quantile(np.array(drawn), [tail, 1 - tail], axis=0)
    names = (("AUC", 0.5), ("TPR at 1 % FPR", 0.01), ("TPR at 0.1 % FPR", 0.001))
    values = reached(np.arange(len(scores)))
    return [
        Measure(
            name, value, float(low), float(high), floor, main=name == "AUC", samples=len(scores)
        )
        for (name, floor), value, low, high in zip(names, values, lows, highs, strict=True)
    ]
