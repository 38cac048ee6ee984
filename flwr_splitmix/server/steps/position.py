"""A step's position in its run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepPosition:
    """Where in its run a step is.

    Parameters
    ----------
    number
        The step's number in its round, from 0.
    progress
        Global progress in rounds, for the schedules.
    last
        Whether no further step of the round is planned.
    """

    server_round: int
    number: int
    progress: float
    last: bool = False

    @classmethod
    def within(cls, server_round: int, number: int, num_steps: int) -> StepPosition:
        """Return the position of a step in a round of `num_steps`."""
        progress = server_round - 1 + number / num_steps
        return cls(server_round, number, progress, last=number == num_steps - 1)
