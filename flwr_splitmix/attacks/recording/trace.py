"""The trace of a run: a bounded number of its newest steps as the server saw them.

It is kept in memory, or on disk (`disk_trace`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from flwr_splitmix.attacks.recording.packing import UShapeStep, tensors_of
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.seen_keys import SeenKeys

log = logging.getLogger("flwr.splitmix")

Recorded = Step | UShapeStep

MAX_BYTES = 2**30
MAX_STEPS = 1000


class Trace(ABC):
    """The newest steps of a run, oldest first, and the averaged lower segments of their rounds.

    Parameters
    ----------
    max_bytes
        Bound on steps and segments together. The oldest steps are dropped, but never the newest
        one, and a segment with the last step of its round. Segments may have half of it, so that
        steps remain: beyond that the oldest segments are dropped, and a larger one is not kept.
    max_steps
        Bound on the number of steps; the oldest are dropped.

    Raises
    ------
    ValueError
        If a bound is below 1.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_steps", max_steps)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.max_bytes = max_bytes
        self.max_steps = max_steps
        self._once = SeenKeys()

    @abstractmethod
    def add(self, step: Recorded) -> None:
        """Add a step, dropping the oldest beyond the bounds."""

    @abstractmethod
    def steps(self, newest: int | None = None) -> Iterator[Recorded]:
        """Return the steps, or only the `newest` ones, oldest first."""

    @abstractmethod
    def backwards(self) -> Iterator[Recorded]:
        """Return the steps, newest first."""

    @abstractmethod
    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:
        """Keep the averaged lower segment that a round started from, if it is not too large."""

    @abstractmethod
    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:
        """Return the averaged lower segment that a round started from, if it was kept."""

    @abstractmethod
    def rewind(self, server_round: int) -> None:
        """Drop steps and segments of a round and of later rounds, which will be repeated."""

    def _takes(self, server_round: int, size: int) -> bool:
        """Return whether a segment of so many bytes may be kept; warn if not."""
        fits = size <= self.max_bytes // 2
        if not fits:
            self._warn_left_out({server_round: size})
        return fits

    def _warn_left_out(self, segments: Mapping[int, int]) -> None:
        """Warn, once, of segments (their bytes by round) that are not kept."""
        if not segments or not self._once.add("left out"):
            return
        first = min(segments)
        log.warning(
            "averaged lower segments are left out of the recording, first that of round %d, of "
            "%.1f MB: together they may have half of its %.1f MB, and what the newest step leaves",
            first,
            segments[first] / 1e6,
            self.max_bytes / 1e6,
        )

    def _surplus(
        self, steps: Sequence[tuple[int, int]], segments: Mapping[int, int]
    ) -> tuple[int, list[int]]:
        """Return what to drop: a number of the oldest steps, and rounds whose segments go.

        A segment that goes although steps of its round stay is warned of.

        Parameters
        ----------
        steps
            (round, bytes) of each step, oldest first.
        segments
            By round, a segment's bytes.
        """
        kept_segments = _newest(segments, self.max_bytes // 2)
        kept_steps, total = deque(steps), sum(size for _, size in steps)
        while len(kept_steps) > 1 and (
            total + sum(kept_segments.values()) > self.max_bytes or len(kept_steps) > self.max_steps
        ):
            total -= kept_steps.popleft()[1]
            kept_segments = {r: size for r, size in kept_segments.items() if r >= kept_steps[0][0]}
        # The newest step may need all there is.
        kept_segments = _newest(kept_segments, self.max_bytes - total)
        gone = [r for r in segments if r not in kept_segments]
        self._warn_left_out(
            {r: segments[r] for r in gone if not kept_steps or r >= kept_steps[0][0]}
        )
        return len(steps) - len(kept_steps), gone


class MemoryTrace(Trace):
    """A trace in the memory of its process."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        super().__init__(max_bytes, max_steps)
        self._steps: deque[tuple[Recorded, int]] = deque()
        self._segments: dict[int, dict[str, Tensor]] = {}

    def add(self, step: Recorded) -> None:  # noqa: D102
        self._steps.append((step, nbytes_of(tensors_of(step))))
        self._bound()

    def steps(self, newest: int | None = None) -> Iterator[Recorded]:  # noqa: D102
        snapshot = tuple(self._steps)
        first = 0 if newest is None else max(0, len(snapshot) - newest)
        return (step for step, _ in snapshot[first:])

    def backwards(self) -> Iterator[Recorded]:  # noqa: D102
        return (step for step, _ in reversed(tuple(self._steps)))

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        if self._takes(server_round, nbytes_of(arrays)):
            self._segments[server_round] = {name: t.detach().clone() for name, t in arrays.items()}
            self._bound()

    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:  # noqa: D102
        return self._segments.get(server_round)

    def rewind(self, server_round: int) -> None:  # noqa: D102
        self._steps = deque(entry for entry in self._steps if entry[0].server_round < server_round)
        self._segments = {r: arrays for r, arrays in self._segments.items() if r < server_round}

    def _bound(self) -> None:
        steps = [(step.server_round, size) for step, size in self._steps]
        segments = {r: nbytes_of(arrays) for r, arrays in self._segments.items()}
        dropped, rounds = self._surplus(steps, segments)
        for _ in range(dropped):
            self._steps.popleft()
        for server_round in rounds:
            del self._segments[server_round]


def _newest(segments: Mapping[int, int], most: int) -> dict[int, int]:
    """Return the newest segments that together have at most so many bytes, oldest first."""
    newest = dict(sorted(segments.items()))
    while newest and sum(newest.values()) > most:
        del newest[min(newest)]
    return newest


def nbytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of named tensors."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
