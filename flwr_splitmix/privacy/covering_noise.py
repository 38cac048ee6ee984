"""The noise on a release about single records, and what it must hide."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr_splitmix.privacy.costs import hides


@dataclass(frozen=True, kw_only=True)
class CoveringNoise:
    """Gaussian noise on a release, in the release's units.

    Parameters
    ----------
    sigma
        Standard deviation of the noise on each number.
    moved
        The largest L2 distance by which replacing one record moves the release.
    bound
        The largest L2 norm of what the noise is added to, whichever records are in it.
    """

    sigma: float
    moved: float
    bound: float

    @property
    def shift(self) -> float:
        """How far replacing a record moves the release, in standard deviations of the noise.

        Infinite if the noise hides nothing: see `costs.hides`.
        """
        return self.moved / self.sigma if hides(self.sigma, self.bound) else math.inf
