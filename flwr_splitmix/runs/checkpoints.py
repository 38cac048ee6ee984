"""Checkpoints by round: the newest ones of a run, and the client states that belong to them."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.files.writing import flush_folder, remove_unfinished
from flwr_splitmix.storage import OtherFormError, StorageError, load_tensors, save_tensors, under

ROUND_NAMES, BETWEEN_NAMES = "round-*.safetensors", "between-*.safetensors"
"""Patterns of the names of files: of a round that is kept, and of one between two checkpoints."""

_FILE = re.compile(r"round-(\d{6,})\.safetensors")
_BETWEEN = re.compile(r"between-(\d{6,})\.safetensors")

LOWER, INITIAL = "lower", "initial-lower"
"""Names of a checkpoint's lower segment: of the averaged one; without averaging, of the first."""

_log = logging.getLogger("flwr.splitmix")


def lower_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's lower segment: the averaged, or else the one clients began with."""
    return under(LOWER, tensors) or under(INITIAL, tensors)


@dataclass(frozen=True)
class Checkpoint:
    """The state saved after a round: named tensors (on the CPU) and plain JSON values."""

    round: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class _RoundFiles:
    """The files round-000012.safetensors of one directory, which need not exist yet."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self._private = private

    def file(self, round: int) -> Path:
        if round < 0:
            raise ValueError(f"a round is not negative, but {round} was given")
        return self.path / f"round-{round:06d}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, lowest first; files of other names are ignored."""
        if not self.path.exists():
            return []
        matches = (_FILE.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def save(self, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
        file = self.file(round)
        remove_unfinished(self.path, ROUND_NAMES)  # first: a full disk has room then
        save_tensors(file, tensors, meta, private=self._private)
        return file

    def load(self, round: int) -> Checkpoint:
        tensors, meta = load_tensors(self.file(round))
        return Checkpoint(round, tensors, meta)

    def newest_readable(self, at_most: int | None = None) -> Checkpoint | None:
        """Load the newest file up to round `at_most`; a damaged one is skipped with a warning."""
        rounds = [saved for saved in self.rounds() if at_most is None or saved <= at_most]
        return _newest_readable(rounds, self.load)

    def drop(self, rounds: Collection[int]) -> None:
        remove_unfinished(self.path, ROUND_NAMES)
        for saved in rounds:
            self.file(saved).unlink(missing_ok=True)


class CheckpointStore:
    """The newest `keep` checkpoints of one run, one file per round, in the directory `path`.

    History is linear: saving a round removes checkpoints of later rounds, which date from before
    the run was rewound. By default two are kept: if the newest is damaged, the one before it loads.

    In addition, the newest round between two checkpoints may have a file,
    between-000012.safetensors, which is not flushed to disk: it survives the end of the process,
    but not a power loss.

    Raises
    ------
    ValueError
        If `keep` < 1.
    """

    def __init__(self, path: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"at least 1 checkpoint must be kept, not {keep}")
        self.path = Path(path)
        self.keep = keep
        self._files = _RoundFiles(self.path)

    def rounds(self) -> list[int]:
        """Return the saved rounds, lowest first, including one between two checkpoints."""
        return sorted({*self._files.rounds(), *self._between()})

    def save(self, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
        """Write one checkpoint, then remove all but the newest `keep` up to `round`.

        Returns
        -------
        The file written, `round-000012.safetensors` for round 12.

        Raises
        ------
        OSError
            If it cannot be written; earlier checkpoints are then intact.
        ValueError
            If `round` < 0.
        """
        file = self._files.save(round, tensors, meta)
        self._prune(round)
        return file

    def save_between(
        self, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> Path:
        """Write the newest round between two checkpoints, replacing the previous one.

        Raises
        ------
        OSError
            If it cannot be written; earlier files are then intact.
        """
        file = self._between_file(round)
        for names in (ROUND_NAMES, BETWEEN_NAMES):
            remove_unfinished(self.path, names)
        save_tensors(file, tensors, meta, flush=False)
        for saved, other in self._between().items():
            if saved != round:
                other.unlink(missing_ok=True)
        self._files.drop([saved for saved in self._files.rounds() if saved > round])
        return file

    def keep_between(self) -> None:
        """Turn the newest round into a regular checkpoint if it is one between two checkpoints.

        Raises
        ------
        OSError
            If it cannot be flushed to disk or renamed.
        """
        between, newest = self._between(), max(self.rounds(), default=0)
        if newest in between:
            with between[newest].open("rb") as written:
                os.fsync(written.fileno())
            os.replace(between[newest], self._files.file(newest))
            flush_folder(self.path)
            self._prune(newest)

    def _prune(self, round: int) -> None:
        remove_unfinished(self.path, BETWEEN_NAMES)
        for file in self._between().values():
            file.unlink(missing_ok=True)
        rounds = self._files.rounds()
        kept_rounds = [saved for saved in rounds if saved <= round][-self.keep :]
        self._files.drop(set(rounds) - set(kept_rounds))

    def _between_file(self, round: int) -> Path:
        name = self._files.file(round).name
        return self.path / name.replace("round-", "between-")

    def _between(self) -> dict[int, Path]:
        """Return the file between checkpoints by round; there may be two after a crash."""
        if not self.path.exists():
            return {}
        matches = ((_BETWEEN.fullmatch(entry.name), entry) for entry in self.path.iterdir())
        return {int(match[1]): entry for match, entry in matches if match}

    def load(self, round: int | None = None) -> Checkpoint:
        """Load the checkpoint of `round`; None loads the newest one that can be read.

        Raises
        ------
        StorageError
            If there is none, none that can be read, or one in another form.
        """
        rounds = self.rounds()
        if round is None:
            newest = _newest_readable(rounds, self._load)
            if newest is None:
                state = (
                    "none is there: one is written every checkpoint-every rounds; if the run is "
                    "older, its checkpoints have been removed"
                )
                if rounds:
                    state = f"none of rounds {_listed(rounds)} can be read"
                raise StorageError(f"there is no checkpoint to load in {self.path}: {state}")
            return newest
        if round not in rounds:
            raise StorageError(
                f"there is no checkpoint of round {round} in {self.path}, "
                f"only of: {_listed(rounds) or 'none'}"
            )
        return self._load(round)

    def _load(self, round: int) -> Checkpoint:
        between = self._between().get(round)
        if between is None:
            return self._files.load(round)
        return Checkpoint(round, *load_tensors(between))


class ClientStore:
    """States of many clients, by client index and round: `<path>/<index>/round-000012.safetensors`.

    A client writes a state only in rounds that it takes part in, so the state that belongs to a
    checkpoint of round r is the client's newest one of a round <= r. Different processes may write
    different clients at the same time. Only the owner may read the files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._config = self.path.parent / "config.json"
        self._in_run = self._config.exists()  # a host on another machine may not have the run

    def save(
        self, index: int, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> Path:
        """Write the state of client `index` after `round`; return the file.

        Raises
        ------
        OSError
            If it cannot be written, as when the run's folder has been removed; earlier states are
            then intact.
        ValueError
            If `index` or `round` is negative.
        """
        if self._in_run and not self._config.exists():
            raise FileNotFoundError(errno.ENOENT, "the run's folder has been removed")
        return self._files(index).save(round, tensors, meta)

    def load(
        self, index: int, at_most: int | None = None
    ) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Load a client's newest readable state of a round <= `at_most` (None: of any round).

        Returns
        -------
        (round, tensors on the CPU, meta), or None if there is no such state. Damaged files are
        skipped with a warning.

        Raises
        ------
        OtherFormError
            If a state is in another form: an older one would have charged less.
        """
        newest = self._files(index).newest_readable(at_most)
        return None if newest is None else (newest.round, newest.tensors, newest.meta)

    def clients(self, at_most: int) -> list[int]:
        """Return the indices of the clients with a state of a round <= `at_most`."""
        if not self.path.exists():
            return []
        indices = sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdecimal())
        return [i for i in indices if any(r <= at_most for r in self._files(i).rounds())]

    def drop_after(self, index: int, round: int) -> int:
        """Remove a client's states of rounds after `round`, from which the run resumes.

        Returns
        -------
        Their number.
        """
        files = self._files(index)
        later = [saved for saved in files.rounds() if saved > round]
        files.drop(later)
        return len(later)

    def prune(self, index: int, kept_rounds: Sequence[int]) -> None:
        """Remove a client's states that no checkpoint in `kept_rounds` would load.

        For each of these rounds the newest state up to it is kept, and so is the newest of all.
        """
        files = self._files(index)
        rounds = files.rounds()
        needed = set(rounds[-1:])
        for kept_round in kept_rounds:
            needed.update([saved for saved in rounds if saved <= kept_round][-1:])
        files.drop(set(rounds) - needed)

    def _files(self, index: int) -> _RoundFiles:
        if index < 0:
            raise ValueError(f"a client's index is not negative, but {index} was given")
        return _RoundFiles(self.path / str(index), private=True)


def _newest_readable(rounds: Sequence[int], load: Callable[[int], Checkpoint]) -> Checkpoint | None:
    for saved in reversed(rounds):
        try:
            return load(saved)
        except OtherFormError:
            raise  # it is whole: older ones lack later charges
        except StorageError as error:
            _log.warning("skipped a damaged checkpoint, trying an older one: %s", error)
    return None


def _listed(rounds: Sequence[int]) -> str:
    return ", ".join(map(str, rounds))
