"""The trace of a run: a bounded number of its newest steps as the server saw them.

It is kept in memory or on disk. On disk each step is one safetensors file, written atomically, so
an interrupted recording is readable up to its last whole step. Only the owner may read it.
"""

from __future__ import annotations

import logging
import re
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from torch import Tensor

from flwr_splitmix.attacks.packing import TextStep, pack_step, tensors_of, unpack_step
from flwr_splitmix.attacks.steps import Step
from flwr_splitmix.mixers import Share, known_shares
from flwr_splitmix.mixers.share import UnknownShareError
from flwr_splitmix.storage import StorageError, load_tensors, save_tensors

log = logging.getLogger("flwr.splitmix")

Recorded = Step | TextStep

MAX_BYTES = 2**30
MAX_STEPS = 1000

_STEP = re.compile(r"step-(\d{6})-(\d{6})\.safetensors")
_SEGMENT = "averaged-{:06d}.safetensors"


class Trace(ABC):
    """The newest steps of a run, oldest first, and the averaged lower segments of their rounds.

    Parameters
    ----------
    max_bytes, max_steps
        Bounds; the oldest steps are dropped.

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

    @abstractmethod
    def add(self, step: Recorded) -> None:
        """Add a step, dropping the oldest beyond the bounds."""

    @abstractmethod
    def steps(self, newest: int | None = None) -> Iterator[Recorded]:
        """Return the steps, or only the `newest` ones, oldest first."""

    @abstractmethod
    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:
        """Keep the averaged lower segment that a round started from."""

    @abstractmethod
    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:
        """Return the averaged lower segment that a round started from, if it was kept."""

    @abstractmethod
    def rewind(self, server_round: int) -> None:
        """Drop the steps of a round and of later rounds, which will be repeated."""


class MemoryTrace(Trace):
    """A trace in the memory of its process."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        super().__init__(max_bytes, max_steps)
        self._steps: deque[tuple[Recorded, int]] = deque()
        self._bytes = 0
        self._segments: dict[int, dict[str, Tensor]] = {}

    def add(self, step: Recorded) -> None:  # noqa: D102
        size = _nbytes(tensors_of(step))
        self._steps.append((step, size))
        self._bytes += size
        while len(self._steps) > 1 and (
            self._bytes > self.max_bytes or len(self._steps) > self.max_steps
        ):
            self._bytes -= self._steps.popleft()[1]
        oldest = self._steps[0][0].server_round
        for server_round in [r for r in self._segments if r < oldest]:
            del self._segments[server_round]

    def steps(self, newest: int | None = None) -> Iterator[Recorded]:  # noqa: D102
        kept = tuple(self._steps)
        return (step for step, _ in (kept if newest is None else kept[-newest:]))

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        self._segments[server_round] = {name: t.detach().clone() for name, t in arrays.items()}

    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:  # noqa: D102
        return self._segments.get(server_round)

    def rewind(self, server_round: int) -> None:  # noqa: D102
        kept = [(step, size) for step, size in self._steps if step.server_round < server_round]
        self._steps = deque(kept)
        self._bytes = sum(size for _, size in kept)


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
        self._sizes: dict[tuple[int, int], int] | None = None

    def add(self, step: Recorded) -> None:
        """Write a step; if the disk fails, log a warning and continue the run."""
        tensors, meta = pack_step(step)
        if isinstance(step, Step):
            self._shares |= {kind.name: kind for kind in step.plan.kinds}
        key = (step.server_round, step.number)
        sizes = self._known()
        try:
            self.make()
            # A disk that takes no new step keeps the old ones; for a moment both are there.
            save_tensors(self._file(key), tensors, meta, flush=False, digested=False, private=True)
            sizes[key] = self._file(key).stat().st_size
            self._drop_oldest(key)
        except OSError as error:
            log.warning(
                "a step could not be recorded in %s: %s", self.path, error.strerror or error
            )

    def make(self) -> None:
        """Create the directory."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    def steps(self, newest: int | None = None) -> Iterator[Recorded]:
        """Read the steps, oldest first; unreadable ones are skipped with a warning."""
        if newest is None:
            return (step for key in self.places if (step := self._read(key)) is not None)
        backwards = (step for key in reversed(self.places) if (step := self._read(key)) is not None)
        return reversed(list(islice(backwards, newest)))

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
        except (StorageError, KeyError, TypeError, ValueError) as error:
            log.warning("a recorded step is left out: %s", error)
            return None

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        try:
            self.make()
            save_tensors(self._segment(server_round), arrays, {}, flush=False, private=True)
        except OSError as error:
            log.warning("a segment could not be recorded in %s: %s", self.path, error)

    def segment(self, server_round: int) -> Mapping[str, Tensor] | None:  # noqa: D102
        file = self._segment(server_round)
        return load_tensors(file)[0] if file.exists() else None

    def rewind(self, server_round: int) -> None:  # noqa: D102
        for key in [key for key in self._known() if key[0] >= server_round]:
            self._remove(key)

    def forget(self) -> None:
        """Delete the whole trace."""
        self._sizes = None
        if self.path.exists():
            shutil.rmtree(self.path)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(self._known().values())

    @property
    def places(self) -> list[tuple[int, int]]:
        """(round, step) of each recorded step, oldest first."""
        return sorted(self._known())

    def _known(self) -> dict[tuple[int, int], int]:
        if self._sizes is None:
            entries = self.path.iterdir() if self.path.exists() else ()
            matches = ((_STEP.fullmatch(entry.name), entry) for entry in entries)
            self._sizes = {
                (int(match[1]), int(match[2])): entry.lstat().st_size  # a link may lead nowhere
                for match, entry in matches
                if match
            }
        return self._sizes

    def _drop_oldest(self, newest: tuple[int, int]) -> None:
        """Drop steps beyond the bounds, but never the newest one."""
        sizes = self._known()
        total = sum(sizes.values())
        for key in sorted(sizes.keys() - {newest}):
            if total <= self.max_bytes and len(sizes) <= self.max_steps:
                return
            total -= sizes[key]
            self._remove(key)

    def _remove(self, key: tuple[int, int]) -> None:
        sizes = self._known()
        self._file(key).unlink(missing_ok=True)
        del sizes[key]
        if not any(server_round == key[0] for server_round, _ in sizes):
            self._segment(key[0]).unlink(missing_ok=True)

    def _file(self, key: tuple[int, int]) -> Path:
        return self.path / f"step-{key[0]:06d}-{key[1]:06d}.safetensors"

    def _segment(self, server_round: int) -> Path:
        return self.path / _SEGMENT.format(server_round)


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())
