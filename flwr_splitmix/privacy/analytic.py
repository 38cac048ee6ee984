"""The Gaussian mechanism's exact (epsilon, delta): the cost of a release, and the noise it needs.

Many Gaussian releases cost as much as one whose shift is the root of the sum of squared shifts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flwr_splitmix.privacy.accountant import check_delta

_STEPS = 200  # of a bisection: beyond the resolution of floats


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return the delta of N(0, 1) against N(shift, 1) at `epsilon`.

    Parameters
    ----------
    epsilon
        At least 0, nats.
    shift
        Sensitivity, in standard deviations of the noise, at least 0.

    Source: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy (2018),
    theorem 8.
    """
    if shift == 0:
        return 0.0
    if math.isinf(shift):
        return 1.0
    above = _log_normal_cdf(shift / 2 - epsilon / shift)
    below = epsilon + _log_normal_cdf(-shift / 2 - epsilon / shift)
    return max(0.0, -math.exp(above) * math.expm1(min(0.0, below - above)))


def gaussian_epsilon(delta: float, shift: float) -> float:
    """Return the least epsilon of N(0, 1) against N(shift, 1) at `delta`; infinite if shift is.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1.
    """
    check_delta(delta)
    if math.isinf(shift) or math.isnan(shift):
        return math.inf
    if gaussian_delta(0.0, shift) <= delta:
        return 0.0
    # The tail bound of a normal number: at this epsilon delta is smaller.
    most = shift * shift / 2 + shift * math.sqrt(-2 * math.log(delta))
    return _bisect(lambda epsilon: gaussian_delta(epsilon, shift) <= delta, 0.0, most)


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least standard deviation of noise that makes a release (epsilon, delta) private.

    Parameters
    ----------
    sensitivity
        The largest L2 distance between releases of neighbouring inputs, in the noise's units.

    Raises
    ------
    ValueError
        If epsilon or sensitivity is not a number above 0, or delta not strictly between 0 and 1,
        or no float is as large as the noise.

    Source: the analytic Gaussian mechanism (Balle and Wang, 2018, algorithm 1), by bisection.
    """
    check_delta(delta)
    for name, value in (("epsilon", epsilon), ("sensitivity", sensitivity)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a number above 0")
    # In units of the sensitivity; the upper end is the classical mechanism's tail bound, or the
    # noise for an epsilon of 0. Roots are taken one by one: twice a large epsilon is no float.
    tail = (math.sqrt(-2 * math.log(delta)) + math.sqrt(2) * math.sqrt(epsilon)) / epsilon
    most = min(tail, 1 / (delta * math.sqrt(2 * math.pi)))
    sigma = sensitivity * _bisect(lambda s: gaussian_delta(epsilon, 1 / s) <= delta, 0.0, most)
    if math.isinf(sigma):
        raise ValueError(
            f"epsilon is {epsilon:g} and delta {delta:g} at a sensitivity of {sensitivity:g}, "
            "which needs noise larger than any float; take a larger epsilon or delta"
        )
    return sigma


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number of the interval from which on `holds` is true, rounded up."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_normal_cdf(x: float) -> float:
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    # Mills' ratio: the next term is below 1e-12 here.
    square = 1 / (x * x)
    series = -square * (1 - square * (3 - square * (15 - square * 105)))
    return -x * x / 2 - math.log(-x) - math.log(2 * math.pi) / 2 + math.log1p(series)
