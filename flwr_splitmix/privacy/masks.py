"""What is known about the masks of a future run, and a bound on their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RandomMasks:
    """Masks that will be drawn; the bound on their cost fails with probability `failure`.

    Parameters
    ----------
    alpha
        Concentration of the Dirichlet distribution of the ratios. CutMix's counts are multinomial
        given the ratios, with `min_patches` 0: the mixers' defaults. For other draws, enumerate
        the ratios.
    failure
        Probability that the run's masks cost more than planned. Masks are public and do not depend
        on the data, so it may simply be added to delta.

    Raises
    ------
    ValueError
        If `alpha` is not a number above 0, or `failure` not strictly between 0 and 1.
    """

    alpha: float
    failure: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha is {self.alpha}; random masks need a number above 0")
        if not 0 < self.failure < 1:
            raise ValueError(f"failure is {self.failure}; a probability lies between 0 and 1")

    def bound(self, costs: Floats, k: int, draws: int) -> float:
        """Return a bound on the total cost of `draws` independent masks, up to `failure`.

        Chernoff's bound for the exact distribution, minimised over a grid of its parameter.

        Parameters
        ----------
        costs
            (patches + 1,): the cost of a release that keeps 0, 1, ..., all patches.
        """
        worst = float(costs.max())
        if not (math.isfinite(worst) and worst > 0):
            return draws * worst
        likely = kept_distribution(len(costs) - 1, k, self.alpha)
        slopes = np.logspace(-6, 4, 401) / worst
        tilted = np.multiply.outer(slopes, costs - worst)  # at most 0: exp cannot overflow
        logs = np.log(np.exp(tilted) @ likely) + slopes * worst
        bounds = (draws * logs - math.log(self.failure)) / slopes
        return float(min(bounds.min(), draws * worst))


def even_ratio(patches: int, k: int) -> float:
    """Return the largest ratio of a client when `patches` are divided as evenly as possible."""
    return -(-patches // k) / patches


def kept_distribution(patches: int, k: int, alpha: float) -> Floats:
    """Return the distribution of one client's number of kept patches.

    Beta-binomial with parameters `alpha` and `(k - 1) alpha`: one member's count if ratios are
    Dirichlet and counts multinomial.

    Returns
    -------
    float64 (patches + 1,), summing to 1. With k = 1 all patches are kept.
    """
    kept: Floats = np.zeros(patches + 1)
    if k == 1:
        kept[-1] = 1
        return kept
    rest = (k - 1) * alpha
    logs = np.array(
        [
            _log_beta(a + alpha, patches - a + rest)
            - _log_beta(alpha, rest)
            - math.log(patches + 1)
            - _log_beta(patches - a + 1, a + 1)
            for a in range(patches + 1)
        ]
    )
    kept = np.exp(logs)
    kept /= kept.sum()
    return kept


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
