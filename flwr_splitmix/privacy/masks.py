"""What is known about the masks of a future run, and a bound on their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_splitmix.values import check_truth
from flwr_splitmix.words import counted

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RandomMasks:
    """Groups and masks that will be drawn; the bound on their cost fails with `failure`.

    Parameters
    ----------
    alpha
        Concentration of the Dirichlet distribution of the ratios. CutMix's counts are multinomial
        given the ratios, with `min_patches` 0: the mixers' defaults. None makes counts as even as
        possible. For other draws, enumerate the ratios.
    failure
        Probability that the run's masks cost more than planned. Masks are public and do not depend
        on the data, so it may simply be added to delta.
    clients
        Number n of clients in a step, of which random ones form the groups. If k does not divide
        it, n mod k are left over in a smaller group, or one of them alone, and send more. None
        assumes that all groups have k members.
    k_times
        Whether a batch is sent as often as its group has members, with fresh masks (k-times).

    Raises
    ------
    ValueError
        If `alpha` is not a number above 0 or None, `failure` is not strictly between 0 and 1, or
        there are no clients.
    """

    alpha: float | None
    failure: float
    clients: int | None = None
    k_times: bool = False

    def __post_init__(self) -> None:
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha is {self.alpha}; random masks need a number above 0")
        if not 0 < self.failure < 1:
            raise ValueError(f"failure is {self.failure}; a probability lies between 0 and 1")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"clients is {self.clients}; it must be at least 1")
        check_truth("k_times", self.k_times)

    def sizes(self, k: int) -> dict[int, float]:
        """Return how likely a client is in a group of each size in a step.

        Raises
        ------
        ValueError
            If there are fewer than `k` clients.
        """
        n = self.clients or k
        if n < k:
            raise ValueError(f"k is {k} for {counted(n, 'client')}; a group has at most all")
        rest = n % k
        return {k: 1 - rest / n, **({rest: rest / n} if rest else {})}

    def bound(self, costs: Mapping[int, Floats], k: int, draws: int) -> float:
        """Return a bound on the total cost of `draws` independent steps, up to `failure`.

        Chernoff's bound for the exact distribution, minimised over a grid of its parameter.

        Parameters
        ----------
        costs
            By the number of members in a group (of `sizes`), (patches + 1,): the cost of a release
            that keeps 0, 1, ..., all patches.
        """
        sizes = self.sizes(k)
        times = {size: size if self.k_times else 1 for size in sizes}
        worst = max(times[size] * float(costs[size].max()) for size in sizes)
        if not (math.isfinite(worst) and worst > 0):
            return draws * worst
        slopes = np.logspace(-6, 4, 401) / worst
        logs = np.full(len(slopes), -math.inf)
        for size, chance in sizes.items():
            likely = kept_distribution(len(costs[size]) - 1, size, self.alpha)
            possible = costs[size][likely > 0]
            most = float(possible.max())
            tilted = np.multiply.outer(slopes, possible - most)  # at most 0: no overflow
            one = np.log(np.exp(tilted) @ likely[likely > 0]) + slopes * most
            logs = np.logaddexp(logs, math.log(chance) + times[size] * one)
        bounds = (draws * logs - math.log(self.failure)) / slopes
        return float(min(bounds.min(), draws * worst))


def even_ratio(patches: int, k: int) -> float:
    """Return the largest ratio of a client when `patches` are divided as evenly as possible."""
    return -(-patches // k) / patches


def kept_distribution(patches: int, k: int, alpha: float | None) -> Floats:
    """Return the distribution of one client's number of kept patches.

    Beta-binomial with parameters `alpha` and `(k - 1) alpha`: one member's count if ratios are
    Dirichlet and counts multinomial. Without `alpha` the counts are even, and random members get
    one patch more.

    Returns
    -------
    float64 (patches + 1,), summing to 1. With k = 1 all patches are kept.
    """
    kept: Floats = np.zeros(patches + 1)
    if k == 1:
        kept[-1] = 1
        return kept
    if alpha is None:
        least, more = divmod(patches, k)
        kept[[least, least + 1]] = 1 - more / k, more / k
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
