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
    """

    server_round: int
    number: int
    progress: float
