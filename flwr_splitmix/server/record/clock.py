"""The time of a run: how long it has taken, and how long it will take."""

from __future__ import annotations

import time


class RunClock:
    """Counts the seconds of a run, without interruptions, and measures its pace by rounds."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, seconds_before: float = 0.0) -> None:
        """Begin to count, on top of the seconds that the run had taken before an interruption."""
        self._seconds_before = seconds_before
        self._began = time.monotonic()
        self._moments: list[float] = []
        """When the clients of the first round had attached, and when each round ended."""

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken so far."""
        return self._seconds_before + time.monotonic() - self._began

    def begin_round(self) -> None:
        """Note that the clients of a round have attached."""
        if len(self._moments) < 2:  # start-up is no part of a round's pace
            self._moments = [time.monotonic()]

    def end_round(self) -> None:
        """Note that a round has ended."""
        self._moments.append(time.monotonic())

    def seconds_of(self, rounds: int) -> float:
        """Return how long so many rounds will take, at the pace of the last ten."""
        recent = self._moments[-11:]
        pace = (recent[-1] - recent[0]) / (len(recent) - 1)
        return pace * rounds
