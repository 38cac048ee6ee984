"""Updates so far from all others that one of them would ruin the average of them all."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from flwr_splitmix.observers.metrics import median_norm
from flwr_splitmix.segments.batch_norm import is_measured

TIMES_MEDIAN = 1000.0
"""An absurd update has a norm above this many times the round's median."""

TIMES_WEIGHTS = 10.0
"""It also has weights above this many times the median client's, and above this number."""

_FEWEST = 3
"""Fewest clients with which a single one cannot be the median of both."""


def weights_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the floating arrays of a lower segment, without BatchNorm's statistics.

    These may differ as much as the scales of clients' data do.
    """
    return {
        name: array
        for name, array in arrays.items()
        if array.dtype.kind == "f" and array.size and not is_measured(name)
    }


def largest_number(weights: Mapping[str, np.ndarray]) -> float:
    """Return the largest absolute number of weights; constants may be infinite and do not count."""
    numbers = (float(np.abs(array).max()) for array in weights.values())
    return max((number for number in numbers if np.isfinite(number)), default=0.0)


def absurd_updates(norms: Mapping[int, float], largest: Mapping[int, float]) -> list[int]:
    """Return the clients whose update would ruin an average; none if there are fewer than three.

    A large norm alone means little if most clients hardly learn, and large weights if all have
    them.

    Parameters
    ----------
    norms, largest
        By client index, the norm of its update and the `largest_number`, both of its weights.
    """
    median = median_norm(norms)
    if median is None or len(norms) < _FEWEST:
        return []
    usual = max(1.0, statistics.median_low(largest.values()))
    return [
        client
        for client, norm in norms.items()
        if norm > TIMES_MEDIAN * median and largest[client] > TIMES_WEIGHTS * usual
    ]
