"""The trace of a run: a bounded number of its newest steps as the server saw them.

It is kept in memory or on disk. On disk each step is one safetensors file, written atomically, so
an interrupted recording is readable up to its last whole step. Only the owner may read it.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from torch import Tensor

from flwr_splitmix.attacks.packing import UShapeStep, pack_step, tensors_of, unpack_step
from flwr_splitmix.attacks.steps import Step
from flwr_splitmix.mixers import Share, known_shares
from flwr_splitmix.mixers.share import UnknownShareError
from flwr_splitmix.storage import StorageError, load_tensors, save_tensors
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

Recorded = Step | UShapeStep

MAX_BYTES = 2**30
MAX_STEPS = 1000

_STEP = re.compile(r"step-(\d{6})-(\d{6})\.safetensors")
_SEGMENT = re.compile(r"averaged-(\d{6})\.safetensors")


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
        self._told_left_out = False

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
        if self._told_left_out or not segments:
            return
        self._told_left_out = True
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
        kept = _newest(segments, self.max_bytes // 2)
        left, total = deque(steps), sum(size for _, size in steps)
        while len(left) > 1 and (
            total + sum(kept.values()) > self.max_bytes or len(left) > self.max_steps
        ):
            total -= left.popleft()[1]
            kept = {r: size for r, size in kept.items() if r >= left[0][0]}
        kept = _newest(kept, self.max_bytes - total)  # the newest step may need all there is
        gone = [r for r in segments if r not in kept]
        self._warn_left_out({r: segments[r] for r in gone if not left or r >= left[0][0]})
        return len(steps) - len(left), gone


class MemoryTrace(Trace):
    """A trace in the memory of its process."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        super().__init__(max_bytes, max_steps)
        self._steps: deque[tuple[Recorded, int]] = deque()
        self._segments: dict[int, dict[str, Tensor]] = {}

    def add(self, step: Recorded) -> None:  # noqa: D102
        self._steps.append((step, _nbytes(tensors_of(step))))
        self._bound()

    def steps(self, newest: int | None = None) -> Iterator[Recorded]:  # noqa: D102
        kept = tuple(self._steps)
        first = 0 if newest is None else max(0, len(kept) - newest)
        return (step for step, _ in kept[first:])

    def backwards(self) -> Iterator[Recorded]:  # noqa: D102
        return (step for step, _ in reversed(tuple(self._steps)))

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        if self._takes(server_round, _nbytes(arrays)):
            self._segments[server_round] = {name: t.detach().clone() for name, t in arrays.items()}
            self._bound()

    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:  # noqa: D102
        return self._segments.get(server_round)

    def rewind(self, server_round: int) -> None:  # noqa: D102
        self._steps = deque(kept for kept in self._steps if kept[0].server_round < server_round)
        self._segments = {r: kept for r, kept in self._segments.items() if r < server_round}

    def _bound(self) -> None:
        steps = [(step.server_round, size) for step, size in self._steps]
        segments = {r: _nbytes(arrays) for r, arrays in self._segments.items()}
        dropped, rounds = self._surplus(steps, segments)
        for _ in range(dropped):
            self._steps.popleft()
        for server_round in rounds:
            del self._segments[server_round]


class DiskTrace(Trace):
    """A trace in its own directory, which only the owner may read.

    Parameters
    ----------
    path
        The directory; it is created with the first step.
    shares
        Kinds of shares besides the built-in ones. Those of steps that are added here are known.
    """

    def __init__(
        self,
        path: Path | str,
        max_bytes: int = MAX_BYTES,
        max_steps: int = MAX_STEPS,
        *,
        shares: Iterable[type[Share]] = (),
    ) -> None:
        super().__init__(max_bytes, max_steps)
        self.path = Path(path)
        self._shares = {kind.name: kind for kind in known_shares(shares)}
        self._told_unknown: set[object] = set()
        self._told_lost: set[tuple[int, int]] = set()
        self._made = False
        self._known: tuple[dict[tuple[int, int], int], dict[int, int]] | None = None

    def add(self, step: Recorded) -> None:
        """Write a step; if the disk fails, log a warning and continue the run."""
        tensors, meta = pack_step(step)
        if isinstance(step, Step):
            self._shares |= {kind.name: kind for kind in step.plan.kinds}
        key, (steps, _) = (step.server_round, step.number), self._sizes()
        file = self._file(key)
        try:
            self.make()
            # A disk that takes no new step keeps the old ones; for a moment both are there.
            save_tensors(file, tensors, meta, flush=False, digested=False, private=True)
            steps[key] = file.stat().st_size
            self._bound()
        except OSError as error:
            log.warning(
                "a step could not be recorded in %s: %s", self.path, error.strerror or error
            )

    def make(self) -> None:
        """Create the directory.

        Raises
        ------
        OSError
            If that fails, or it was removed after this trace had made it: it does not come back.
        """
        if self._made and not self.path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "it has been removed")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        self._made = True

    def steps(self, newest: int | None = None) -> Iterator[Recorded]:
        """Read the steps, oldest first; unreadable ones are skipped, with one warning for all."""
        if newest is None:
            return self._read_all(self.places)
        return reversed(list(islice(self.backwards(), newest)))

    def backwards(self) -> Iterator[Recorded]:
        """Read the steps, newest first, as `steps` does."""
        return self._read_all(self.places[::-1])

    def _read_all(self, keys: Sequence[tuple[int, int]]) -> Iterator[Recorded]:
        lost: dict[tuple[int, int], Exception] = {}
        try:
            for key in keys:
                try:
                    step = self._read(key)
                except (StorageError, KeyError, TypeError, ValueError) as error:
                    lost[key] = error
                    continue
                if step is not None:
                    yield step
        finally:  # also where nobody asks for the rest
            self._warn_lost({key: lost[key] for key in lost if key not in self._told_lost})

    def _warn_lost(self, lost: Mapping[tuple[int, int], Exception]) -> None:
        if not lost:
            return
        self._told_lost |= lost.keys()
        (server_round, number), error = next(iter(lost.items()))
        log.warning(
            "%s cannot be read and %s left out, first step %d of round %d: %s",
            counted(len(lost), "recorded step"),
            are(len(lost)),
            number,
            server_round,
            f"it lacks {error}" if isinstance(error, KeyError) else error,
        )

    def _read(self, key: tuple[int, int]) -> Recorded | None:
        try:
            return unpack_step(*load_tensors(self._file(key)), self._shares.values())
        except UnknownShareError as error:
            if error.name not in self._told_unknown:
                self._told_unknown.add(error.name)
                log.warning(
                    "recorded steps with shares %r are left out; to read them, give the kind of "
                    "share to DiskTrace(shares=...), or name it in its mixer's `shares`",
                    error.name,
                )
            return None

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        if not self._takes(server_round, _nbytes(arrays)):
            return
        file, (_, segments) = self._segment(server_round), self._sizes()
        try:
            self.make()
            save_tensors(file, arrays, {}, flush=False, private=True)
            segments[server_round] = file.stat().st_size
            self._bound()
        except OSError as error:
            log.warning("a segment could not be recorded in %s: %s", self.path, error)

    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:  # noqa: D102
        file = self._segment(server_round)
        return load_tensors(file)[0] if file.exists() else None

    def rewind(self, server_round: int) -> None:  # noqa: D102
        steps, segments = self._sizes()
        self._remove(
            [key for key in steps if key[0] >= server_round],
            [number for number in segments if number >= server_round],
        )

    def forget(self) -> None:
        """Delete the whole trace."""
        self._known = None
        if self.path.exists():
            shutil.rmtree(self.path)

    @property
    def nbytes(self) -> int:
        """Bytes of steps and segments on disk."""
        return sum(sum(sizes.values()) for sizes in self._sizes())

    @property
    def places(self) -> list[tuple[int, int]]:
        """(round, step) of each recorded step, oldest first."""
        return sorted(self._sizes()[0])

    def _sizes(self) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
        """Return the bytes of steps, by (round, step), and of segments, by round."""
        if self._known is None:
            steps: dict[tuple[int, int], int] = {}
            segments: dict[int, int] = {}
            for entry in self.path.iterdir() if self.path.exists() else ():
                if match := _STEP.fullmatch(entry.name):
                    steps[int(match[1]), int(match[2])] = entry.lstat().st_size  # maybe a dead link
                elif match := _SEGMENT.fullmatch(entry.name):
                    segments[int(match[1])] = entry.lstat().st_size
            self._known = steps, segments
        return self._known

    def _bound(self) -> None:
        steps, segments = self._sizes()
        keys = self.places
        dropped, rounds = self._surplus([(key[0], steps[key]) for key in keys], segments)
        self._remove(keys[:dropped], rounds)

    def _remove(self, keys: Sequence[tuple[int, int]], rounds: Sequence[int]) -> None:
        steps, segments = self._sizes()
        for key in keys:
            self._file(key).unlink(missing_ok=True)
            del steps[key]
        for server_round in rounds:
            self._segment(server_round).unlink(missing_ok=True)
            del segments[server_round]

    def _file(self, key: tuple[int, int]) -> Path:
        return self.path / f"step-{key[0]:06d}-{key[1]:06d}.safetensors"

    def _segment(self, server_round: int) -> Path:
        return self.path / f"averaged-{server_round:06d}.safetensors"


def _newest(segments: Mapping[int, int], most: int) -> dict[int, int]:
    """Return the newest segments that together have at most so many bytes, oldest first."""
    kept = dict(sorted(segments.items()))
    while kept and sum(kept.values()) > most:
        del kept[min(kept)]
    return kept


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())
