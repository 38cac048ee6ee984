"""Knowledge of the masks of a future run, and a bound on their cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_splitmix.values import check_truth, whole_number
from flwr_splitmix.words import counted

Floats = NDArray[np.float64]

_RARE = 1e-6


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
        it, n mod k are left over in a smaller group, or one of them alone, and send more. Several
        numbers, if it may be another in each step: then the bound holds whichever these are. None
        assumes that all groups have k members.
    k_times
        Whether a batch is sent as often as its group has members, with fresh masks (k-times).
    batches
        Batches of a pass, of which the one that costs most is charged, as in a server's ledger,
        which does not know where a record is. 1 is the view of one record.

    Raises
    ------
    ValueError
        If `alpha` is not a number above 0 or None, `failure` is not strictly between 0 and 1, or
        there are no clients or no batches.
    """

    alpha: float | None
    failure: float
    clients: int | Collection[int] | None = None
    k_times: bool = False
    batches: int = 1

    def __post_init__(self) -> None:
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha is {self.alpha}; random masks need a finite one above 0")
        if not 0 < self.failure < 1:
            raise ValueError(f"failure is {self.failure}; a probability lies between 0 and 1")
        if (least := min(numbers_of(self.clients), default=1)) < 1:
            raise ValueError(f"clients is {least}; it must be at least 1")
        check_truth("k_times", self.k_times)
        if whole_number("batches", self.batches) < 1:
            raise ValueError(f"batches is {self.batches}; it must be at least 1")

    def sizes(self, k: int) -> list[dict[int, float]]:
        """Return the chance of a client to be in a group of each size, per number of clients.

        Raises
        ------
        ValueError
            If there are always fewer than `k` clients.
        """
        numbers = numbers_of(self.clients) or (k,)
        if max(numbers) < k:
            raise ValueError(
                f"k is {k} for {counted(max(numbers), 'client')}; a group has at most all"
            )
        rests = {n: n % k for n in numbers}
        shares = [{k: 1 - rest / n, rest: rest / n} for n, rest in rests.items()]
        return [{size: chance for size, chance in each.items() if chance} for each in shares]

    def bound(self, costs: Mapping[int, Floats], k: int, draws: int) -> float:
        """Return a bound on the total cost of `draws` independent passes, up to `failure`.

        Chernoff's bound, minimised over a grid of its parameter, for the exact distribution; with
        `k_times` the worst of several batches is bounded by the sum of their probabilities.

        Parameters
        ----------
        costs
            By the number of members in a group (all in `sizes`), (patches + 1,): the cost of a
            release that keeps 0, 1, ..., all patches.
        """
        worst = self.worst(costs)
        if not (math.isfinite(worst) and worst > 0):
            return draws * worst
        slopes = np.logspace(-6, 4, 401) / worst
        shares = {size: kept_distribution(len(costs[size]) - 1, size, self.alpha) for size in costs}
        if self.k_times:
            logs = math.log(self.batches) + np.max(
                [self._logs_of_a_batch(slopes, sizes, costs, shares) for sizes in self.sizes(k)],
                axis=0,
            )
        else:
            of_all = np.concatenate(list(costs.values()))
            chances = [
                np.concatenate([sizes.get(size, 0.0) * share for size, share in shares.items()])
                for sizes in self.sizes(k)
            ]
            logs = _log_mean_exp(slopes, *_worst_of(self.batches, of_all, np.array(chances)))
        bounds = (draws * logs - math.log(self.failure)) / slopes
        return float(min(bounds.min(), draws * worst))

    def worst(self, costs: Mapping[int, Floats]) -> float:
        """Return the largest cost of a pass, whatever is drawn; `costs` are those of `bound`."""
        times = {size: size if self.k_times else 1 for size in costs}
        return max(times[size] * float(cost.max()) for size, cost in costs.items())

    @staticmethod
    def _logs_of_a_batch(
        slopes: Floats,
        sizes: Mapping[int, float],
        costs: Mapping[int, Floats],
        shares: Mapping[int, Floats],
    ) -> Floats:
        """Return the logarithm of the mean of `exp(slope * cost)` of a batch that is sent k times.

        Parameters
        ----------
        sizes
            The chance of a group of each size.
        """
        logs = np.full(len(slopes), -math.inf)
        for size, chance in sizes.items():
            one = _log_mean_exp(slopes, costs[size], shares[size])
            logs = np.logaddexp(logs, math.log(chance) + size * one)
        return logs


def numbers_of(clients: int | Collection[int] | None) -> tuple[int, ...]:
    """Return the numbers of clients that a step may have; () if they are not known."""
    if clients is None:
        return ()
    several = clients if isinstance(clients, Collection) else (clients,)
    return tuple(whole_number("clients", number) for number in several)


def _log_mean_exp(slopes: Floats, values: Floats, chances: Floats) -> Floats:
    """Return the logarithm of the mean of `exp(slope * value)` for each slope."""
    possible = values[chances > 0]
    most = float(possible.max())
    tilted = np.exp(np.multiply.outer(slopes, possible - most))  # at most 1: no overflow
    logs: Floats = np.log(tilted @ chances[chances > 0]) + slopes * most
    return logs


def _worst_of(draws: int, values: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """Return the distribution of the largest of independent draws: sorted values, chances.

    Parameters
    ----------
    chances
        (distributions, values): if there are several, each draw may be of any of them, and the
        result is of one that is larger than all.
    """
    order = np.argsort(values)
    # Summed from the largest value down, so that the smallest chances keep their digits.
    above = np.minimum(np.cumsum(chances[:, order[::-1]], axis=1).max(axis=0), 1.0)
    with np.errstate(divide="ignore"):
        reached = -np.expm1(draws * np.log1p(-above))
    return values[order], np.maximum(np.diff(reached, prepend=0.0)[::-1], 0.0)


def even_ratio(patches: int, k: int) -> float:
    """Return the largest ratio of a client when `patches` are divided as evenly as possible."""
    return -(-patches // k) / patches


def least_ratio(patches: int, k: int, alpha: float | None) -> float:
    """Return a ratio above 0 below which one of `k` members is once in a million draws."""
    likely = kept_distribution(patches, k, alpha)
    return (1 + int(np.argmax(np.cumsum(likely[1:]) > _RARE))) / patches


def kept_distribution(patches: int, k: int, alpha: float | None) -> Floats:
    """Return the distribution of one client's number of kept patches.

    Beta-binomial with parameters `alpha` and `(k - 1) alpha`: one member's count if ratios are
    Dirichlet and counts multinomial. Without `alpha` the counts are even, and random members get
    one patch more.

    Returns
    -------
    float64 (patches + 1,), summing to 1. With k = 1 all patches are kept.
    """
    distribution: Floats = np.zeros(patches + 1)
    if k == 1:
        distribution[-1] = 1
        return distribution
    if alpha is None:
        least, more = divmod(patches, k)
        distribution[[least, least + 1]] = 1 - more / k, more / k
        return distribution
    # Its probabilities are proportional to products of alpha + i and of (k - 1) alpha + i; of
    # logarithms of such terms, not of gamma functions, sums are exact for any alpha.
    steps = np.arange(patches)
    own_logs = np.cumsum([0.0, *np.log(alpha + steps)])
    others = np.cumsum([0.0, *(math.log(k - 1) + np.log(alpha + steps / (k - 1)))])
    orders = np.cumsum([0.0, *np.log(steps + 1)])
    logs = own_logs + others[::-1] - orders - orders[::-1]
    distribution = np.exp(logs - logs.max())
    distribution /= distribution.sum()
    return distribution
