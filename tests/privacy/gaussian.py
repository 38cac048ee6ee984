"""What is exactly known of two normal distributions, as a reference for the accountant."""

from __future__ import annotations

import importlib
import math

import numpy as np

_stats = importlib.import_module("scipy.stats")


def exact_delta(epsilon: float, shift: float) -> float:
    """Return the delta of N(0, 1) against N(shift, 1) at epsilon.

    Source: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy (2018),
    theorem 8.
    """
    half, ratio = shift / 2, epsilon / shift
    tail = epsilon + _stats.norm.logcdf(-ratio - half)
    return float(_stats.norm.cdf(half - ratio) - math.exp(tail))


def exact_epsilon(delta: float, shift: float) -> float:
    """Return the epsilon of N(0, 1) against N(shift, 1) at delta, by bisection."""
    low, high = 0.0, shift**2 + 40 * shift + 1
    if exact_delta(0.0, shift) <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_delta(middle, shift) > delta else (low, middle)
    return high


def attacked_epsilon(scores: list[np.ndarray], delta: float) -> float:
    """Return an epsilon that a threshold attack shows to be exceeded, with 95 % confidence.

    Parameters
    ----------
    scores
        Four arrays of independent draws: of either input to choose the threshold, and of either
        input to measure with it. Higher scores speak for the first input.
    """
    first, second, first_again, second_again = (np.sort(s) for s in scores)
    candidates = np.quantile(np.concatenate([first, second]), np.linspace(0.001, 0.999, 999))
    hits = 1 - np.searchsorted(first, candidates) / len(first)
    alarms = 1 - np.searchsorted(second, candidates) / len(second)
    # A few alarms at least: a threshold chosen for having none would not keep its promise.
    usable = (hits > delta) & (alarms * len(second) >= 5)
    if not usable.any():
        return 0.0
    gain = np.log((hits[usable] - delta) / alarms[usable])
    threshold = candidates[usable][gain.argmax()]
    n = len(first_again)
    hit = n - int(np.searchsorted(first_again, threshold))
    alarm = n - int(np.searchsorted(second_again, threshold))
    surely_hit = _stats.beta.ppf(0.025, hit, n - hit + 1) if hit else 0.0
    surely_alarm = _stats.beta.ppf(0.975, alarm + 1, n - alarm) if alarm < n else 1.0
    return max(0.0, math.log(max(surely_hit - delta, 1e-12) / surely_alarm))
