"""Planning before a run: the epsilon that noise gives, and the noise that an epsilon needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from flwr_splitmix.privacy.accountant import (
    ORDERS,
    Conversion,
    check_delta,
    epsilon_from_rdp,
    rdp_curve,
    rho_for,
)
from flwr_splitmix.privacy.costs import Floats, release_costs
from flwr_splitmix.privacy.events import UNBOUNDED, Relation, Release
from flwr_splitmix.privacy.masks import RandomMasks
from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.words import counted

MIXUP_RATIOS = 256
"""Resolution, in steps of 0..1, of ratios that are not those of patches."""


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """A future run, from the view of one record of one client.

    Parameters
    ----------
    release
        The client's release for each batch; `ratio` and `ratios` are not used.
    passes
        Number of passes over the data: each record is in one batch of each pass.
    delta
        The guarantee's failure probability, including that of random masks.
    kept
        The client's ratios, as far as known: one number for all passes (1 is the worst case),
        one per pass, as enumerated from the run's seed, or `RandomMasks`, which also knows what
        clients that are left over send.
    k
        Members of a group.
    relation
        How neighbouring inputs differ.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    release: Release
    passes: int
    delta: float
    kept: float | Sequence[float] | RandomMasks = 1.0
    k: int = 1
    relation: Relation = "replace"

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.passes < 1:
            raise ValueError(f"passes is {self.passes}; it must be at least 1")
        if self.k < 1:
            raise ValueError(f"k is {self.k}; a group has at least 1 client")
        if isinstance(self.kept, RandomMasks):
            if self.kept.failure >= self.delta:
                raise ValueError(
                    f"failure is {self.kept.failure}; it is a part of delta and must be below "
                    f"{self.delta}"
                )
            self.kept.sizes(self.k)
            return
        ratios = np.asarray(self.kept, dtype=np.float64)
        if ratios.ndim and ratios.shape != (self.passes,):
            raise ValueError(
                f"kept has {counted(ratios.size, 'ratio')} for {counted(self.passes, 'pass')}"
            )
        if not ((ratios >= 0) & (ratios <= 1)).all():
            raise ValueError("kept holds a ratio that is not in 0..1")

    @property
    def rho(self) -> float:
        """Slope of the whole run (see `costs`); infinite if there is no bound."""
        return min(rho for rho, _ in self._bounds)

    def epsilon(self, orders: ArrayLike = ORDERS, conversion: Conversion = "tight") -> float:
        """Return the epsilon of the whole run; infinite if there is no bound.

        Raises
        ------
        ValueError
            If an order is not greater than 1, or the conversion is unknown.
        """
        smallest = min(self._epsilons(orders, conversion))
        return smallest if all(rho for rho, _ in self._bounds) else 0.0

    @property
    def is_worst_case(self) -> bool:
        """Whether random masks cost no more if all are the worst than with a bound that may fail.

        Then `epsilon` is that of the worst masks.
        """
        of_bound, *of_worst = self._epsilons(ORDERS, "tight")
        return any(epsilon <= of_bound for epsilon in of_worst)

    def _epsilons(self, orders: ArrayLike, conversion: Conversion) -> list[float]:
        return [
            float(epsilon_from_rdp(rdp_curve(rho, orders), delta, orders, conversion)[0])
            for rho, delta in self._bounds
        ]

    def noise_for(self, epsilon: float) -> GaussianNoise:
        """Scale both sigmas by one factor, so that the run costs `epsilon`.

        Returns
        -------
        The release's noise with the least sigmas for which `epsilon` holds.

        Raises
        ------
        ValueError
            If no scale of the noise gives `epsilon`.
        """
        bounds = [(rho, rho_for(epsilon, delta)) for rho, delta in self._bounds]
        rho = min(rho for rho, _ in bounds)
        if not 0 < rho < math.inf:
            gaps = self.release.noise.gaps or ("resolution",)
            why = "; ".join(UNBOUNDED[key] for key in gaps) if rho else "nothing is sent"
            raise ValueError(f"no sigma gives epsilon {epsilon}: {why}")
        # Upwards by more than floating-point rounding: the target is a promise.
        factor = math.sqrt(min(rho / target for rho, target in bounds)) * (1 + 1e-9)
        noise = self.release.noise
        return replace(noise, sigma_s=factor * noise.sigma_s, sigma_y=factor * noise.sigma_y)

    @property
    def _bounds(self) -> list[tuple[float, float]]:
        """Slopes of the whole run, each with the part of delta that is left for epsilon.

        Of random masks there are two: a bound that may fail, and the worst case.
        """
        times = self.release.times
        if self.release.family == "full":
            return [(times * self.passes * float(self._costs(np.ones(1)).sum()), self.delta)]
        if isinstance(self.kept, RandomMasks):  # a mask is drawn for each pass, not for each time
            sizes = {size for each in self.kept.sizes(self.k) for size in each}
            costs = {size: times * self._cost_by_count(size) for size in sizes}
            return [
                (self.kept.bound(costs, self.k, self.passes), self.delta - self.kept.failure),
                (self.kept.worst(costs) * self.passes, self.delta),
            ]
        ratios = np.asarray(self.kept, dtype=np.float64)
        alike = 1 if ratios.ndim else self.passes  # one ratio is that of all passes
        return [(float(self._costs(np.atleast_1d(ratios)).sum()) * times * alike, self.delta)]

    def _cost_by_count(self, size: int) -> Floats:
        """Return the total slope for each count of patches, in a group of `size` members."""
        if self.release.family == "cutmix":
            costs = self._costs(np.linspace(0, 1, self.release.patches + 1), size)
            return costs[:, 0] + costs[:, 1]
        # Mixup's ratios are not rounded to patches. A count over a fixed total is the ratio plus
        # a rounding of mean zero, so by Jensen's inequality it stands for the ratio wherever the
        # cost is convex in it: quadratic, or constant as labels noised before scaling are at most.
        costs = self._costs(np.linspace(0, 1, MIXUP_RATIOS + 1), size)
        if self.release.noise.label_noise == "before":
            costs[:, 1] = costs[-1, 1]
        return costs[:, 0] + costs[:, 1]

    def _costs(self, ratios: Floats, size: int | None = None) -> Floats:
        """Return the slopes (..., 2) of one release with each ratio, among `size` members or k."""
        one = replace(self.release, times=1)
        if self.release.seen == "alone":
            return release_costs(one, self.relation, ratios)
        others_in = (size or self.k) - 1
        # Among groups in which this client has ratio m, equal shares of the others hide it least:
        # the sum of squares is smallest.
        others = np.repeat((1 - ratios)[:, None] / max(others_in, 1), others_in, axis=1)
        groups = np.concatenate([ratios[:, None], others], axis=1)
        return release_costs(one, self.relation, ratios, groups)
