"""The trace of a run on disk.

Each step is one safetensors file, written atomically, so an interrupted recording is readable up to
its last whole step. Only the owner may read it.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from torch import Tensor

from flwr_splitmix.attacks.recording.packing import pack_step, unpack_step
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.trace import MAX_BYTES, MAX_STEPS, Recorded, Trace, nbytes_of
from flwr_splitmix.mixers import Share, known_shares
from flwr_splitmix.mixers.share import UnknownShareError
from flwr_splitmix.storage import StorageError, load_tensors, save_tensors
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

_STEP = re.compile(r"step-(\d{6})-(\d{6})\.safetensors")
_SEGMENT = re.compile(r"averaged-(\d{6})\.safetensors")


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
        self._is_created = False
        self._removed = False
        self._cached_sizes: tuple[dict[tuple[int, int], int], dict[int, int]] | None = None

    def add(self, step: Recorded) -> None:
        """Write a step; if the disk fails, log a warning and continue the run.

        A reason is warned of once. Once the directory has been removed, nothing more is recorded.
        """
        if self._removed:
            return
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
            self._warn_failed("a step", error)

    def _warn_failed(self, subject: str, error: OSError) -> None:
        if self._removed:
            log.warning("%s has been removed: the run records nothing further", self.path)
            return
        reason = str(error.strerror or error)
        if self._once.add(("failed", reason)):
            log.warning(
                "%s could not be recorded in %s: %s (further failures of this kind are not shown)",
                subject, self.path, reason,
            )  # fmt: skip

    def make(self) -> None:
        """Create the directory.

        Raises
        ------
        OSError
            If that fails, or it was removed after this trace had made it: it does not come back.
        """
        if self._is_created and not self.path.is_dir():
            self._removed = True
            raise FileNotFoundError(errno.ENOENT, "it has been removed")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        self._is_created = True

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
        finally:  # even if the rest is not read
            self._warn_lost({key: lost[key] for key in self._once.add_all(lost)})

    def _warn_lost(self, lost: Mapping[tuple[int, int], Exception]) -> None:
        if not lost:
            return
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
            return unpack_step(
                *load_tensors(self._file(key), digested=False), self._shares.values()
            )
        except UnknownShareError as error:
            if self._once.add(("share", error.name)):
                log.warning(
                    "recorded steps with shares %r are left out; to read them, give the kind of "
                    "share to DiskTrace(shares=...), or name it in its mixer's `shares`",
                    error.name,
                )
            return None

    def add_segment(self, server_round: int, arrays: Mapping[str, Tensor]) -> None:  # noqa: D102
        if self._removed or not self._takes(server_round, nbytes_of(arrays)):
            return
        file, (_, segments) = self._segment(server_round), self._sizes()
        try:
            self.make()
            save_tensors(file, arrays, {}, flush=False, private=True)
            segments[server_round] = file.stat().st_size
            self._bound()
        except OSError as error:
            self._warn_failed("a segment", error)

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
        self._cached_sizes = None
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
        if self._cached_sizes is None:
            steps: dict[tuple[int, int], int] = {}
            segments: dict[int, int] = {}
            for entry in self.path.iterdir() if self.path.exists() else ():
                if match := _STEP.fullmatch(entry.name):
                    steps[int(match[1]), int(match[2])] = entry.lstat().st_size  # maybe a dead link
                elif match := _SEGMENT.fullmatch(entry.name):
                    segments[int(match[1])] = entry.lstat().st_size
            self._cached_sizes = steps, segments
        return self._cached_sizes

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
