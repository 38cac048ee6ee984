"""Learning-rate schedules over the global round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.values import real_number

Schedule = Callable[[float, int], float]
"""(progress in rounds, number of rounds) -> factor on the optimizer's learning rate."""


class ScheduleError(ForeseenError, ValueError):
    """A schedule returns no factor that an optimizer can take.

    Parameters
    ----------
    returned
        What it returned; a server is not told.
    progress, num_rounds
        Where it was asked.
    """

    def __init__(self, returned: object, progress: float, num_rounds: int) -> None:
        where = f"after {progress:g} of {num_rounds} rounds"
        expected = "expected a finite factor on the learning rate, at least 0"
        super().__init__(f"the schedule returned {returned!r} {where}; {expected}")
        self.public = f"the schedule returned something else than a factor {where}; {expected}"


def constant(progress: float, num_rounds: int) -> float:
    """Return 1: keep the learning rate constant."""
    return 1.0


@dataclass(frozen=True)
class WarmupCosine:
    """Linear warm-up, then half a cosine, over the global round.

    Parameters
    ----------
    warmup
        Rounds (fractions allowed) from `start_factor` up to the full learning rate.
    start_factor, final_factor
        Factors on the learning rate at the first step and at the end. With a learning rate of
        1e-3, the defaults give 1e-6 and 1e-5, as in DeiT (Touvron et al., 2020).

    Raises
    ------
    ValueError
        If an argument is no number or below 0.
    """

    warmup: float = 0.0
    start_factor: float = 1e-3
    final_factor: float = 1e-2

    def __post_init__(self) -> None:
        if not real_number("warmup", self.warmup) >= 0:
            raise ValueError(f"warmup is {self.warmup} rounds; it must be at least 0")
        for name in ("start_factor", "final_factor"):
            factor = getattr(self, name)
            if not 0 <= real_number(name, factor) < math.inf:
                raise ValueError(f"{name} is {factor}; it must be at least 0, and finite")

    def __call__(self, progress: float, num_rounds: int) -> float:
        """Return the factor after `progress` of `num_rounds` rounds."""
        if progress < self.warmup:
            return self.start_factor + (1 - self.start_factor) * progress / self.warmup
        fraction = (progress - self.warmup) / max(num_rounds - self.warmup, 1e-9)
        cosine = (1 + math.cos(math.pi * min(fraction, 1.0))) / 2
        return self.final_factor + (1 - self.final_factor) * cosine
