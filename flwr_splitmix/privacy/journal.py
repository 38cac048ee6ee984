"""An append-only file of JSON lines that detects changed or missing lines."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import finite
from flwr_splitmix.files.reading import check_regular
from flwr_splitmix.files.writing import flush_folder, write_all

CHECK = "check"
"""Key of each line's digest, which covers the digest of the line before."""

WAIT = 10.0
"""Seconds that a shared journal waits for another process; each holds it for one operation."""

TAIL = 1 << 14
"""Bytes that are first read from the end of a file to find its last line."""


class JournalError(RuntimeError):
    """A journal is damaged, or another process writes it."""


LONGEST = 1 << 26
"""Most bytes of a line, far more than any has: a file without lines is not read whole."""

_DAMAGES = (ValueError, KeyError, AttributeError, TypeError, RecursionError)
"""Errors from reading a damaged line: no JSON, no object, or one nested too deeply."""


def reason_of(error: OSError | JournalError) -> str:
    """Return the reason why a journal cannot be used, without the file's path."""
    return str(getattr(error, "strerror", None) or error)


class Journal:
    """An append-only file; each line is on the disk when `append` returns.

    One process writes at a time: it holds a lock on the file until `close` or until it exits. A
    last line left unfinished by a crash is removed: it was never acknowledged.

    Parameters
    ----------
    path
        The file; it is created, with its directory, readable by the owner only.
    verify
        Whether to check every line's digest first, or only read the last one.
    durable
        Whether `append` waits for the disk; if not, a power loss may lose the newest lines.
    wait
        Seconds to wait for another process that writes it.

    Raises
    ------
    OSError
        If the file cannot be opened or created.
    JournalError
        If another process writes it, or a line was changed.
    """

    def __init__(
        self, path: Path, *, verify: bool = True, durable: bool = True, wait: float = 0.0
    ) -> None:
        self.path = path
        self._durable = durable
        new = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = _open_locked(path, time.monotonic() + wait)
        try:
            self._check, whole = _verified(path) if verify else _last(path)
            os.ftruncate(self._file, whole)
            os.lseek(self._file, whole, os.SEEK_SET)
            if durable and not whole:  # the file itself may be new
                for folder in (path.parent, *(one.parent for one in new)):
                    flush_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Write lines; if the journal is durable, they are on disk when this returns.

        Raises
        ------
        OSError
            If they cannot be written; the file is then unchanged.
        """
        check, lines = self._check, []
        for entry in map(finite, entries):
            check = _digest(check, entry)
            lines.append(json.dumps({**entry, CHECK: check}) + "\n")
        before = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            write_all(self._file, "".join(lines).encode())
            if self._durable:
                os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            os.lseek(self._file, before, os.SEEK_SET)
            raise
        self._check = check

    def replace(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replace all entries atomically.

        Raises
        ------
        OSError
            If the new entries cannot be written; the old ones are then intact, unless only the
            folder could not be flushed.
        """
        beside = self.path.with_name(f".{self.path.name}.new")
        beside.unlink(missing_ok=True)
        new = Journal(beside)
        try:
            new.append(*entries)
            os.replace(beside, self.path)
        except OSError:
            new.close()
            beside.unlink(missing_ok=True)
            raise
        old, self._file, self._check = self._file, new._file, new._check
        os.close(old)
        flush_folder(self.path.parent)

    @property
    def check(self) -> str:
        """The last line's digest, which covers all lines; "" without any."""
        return self._check

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._file)


class SharedJournal:
    """A journal that several processes write in turn, each for one operation at a time.

    On a node the processes of two runs, or of one run before and after an interruption, may be
    alive at once.

    Parameters
    ----------
    path, durable
        As for `Journal`.

    Raises
    ------
    OSError, JournalError
        As for `Journal`, and later for each operation.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._open_journal: Journal | None = None
        self._seen_state: str | None = None
        with self.held():
            pass

    @contextmanager
    def held(self) -> Iterator[Journal]:
        """Hold the journal; within, another process can neither write it nor hold it."""
        if self._open_journal is not None:
            yield self._open_journal
            return
        journal = Journal(self.path, verify=False, durable=self._durable, wait=WAIT)
        self._open_journal = journal
        try:
            yield journal
        finally:
            self._open_journal = None
            journal.close()

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Write lines, as `Journal.append` does."""
        with self.held() as journal:
            journal.append(*entries)

    @property
    def changed(self) -> bool:
        """Whether the file has changed since the last `note_seen`."""
        return self._seen_state != self._state()

    def note_seen(self) -> None:
        """Note the present state of the file as seen."""
        self._seen_state = self._state()

    def _state(self) -> str:
        with self.held() as journal:
            return journal.check


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return a journal's entries, oldest first, without an unfinished last line.

    Raises
    ------
    OSError
        If the file cannot be read, or is not a regular file.
    JournalError
        If a line was changed or is too long, or one in between is missing.
    """
    check_regular(path)
    return [entry for entry, _ in _entries(path)]


def is_cut(path: Path) -> bool:
    """Return whether a journal's last line is unfinished; raise OSError if it cannot be read."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _open_locked(path: Path, until: float) -> int:
    """Open and lock a file; retry if it was replaced meanwhile, or is locked but not after then."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        locked = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.path.samestat(os.fstat(file), os.stat(path))
            if locked:
                return file
        except FileNotFoundError:
            pass  # replaced just now: the next one is another file
        except BlockingIOError:
            if time.monotonic() >= until:
                raise JournalError(f"{path.name} is being written by another process") from None
            time.sleep(0.005)
        finally:
            if not locked:
                os.close(file)


def _entries(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (entry, end of its line in bytes) after checking each digest."""
    check, end = "", 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
            if not line.endswith(b"\n"):
                if len(line) == LONGEST:
                    raise JournalError(f"line {number} of {path.name} is too long")
                return
            try:
                entry = json.loads(line)
                written = entry.pop(CHECK)
                check = _digest(check, entry)
            except _DAMAGES as error:
                raise JournalError(f"line {number} of {path.name} is damaged") from error
            if written != check:
                raise JournalError(
                    f"line {number} of {path.name} was changed, or a line before it is missing"
                )
            end += len(line)
            yield entry, end


def _verified(path: Path) -> tuple[str, int]:
    """Return the digest of the last whole line and the bytes up to its end."""
    check, end = "", 0
    for entry, position in _entries(path):
        check, end = _digest(check, entry), position
    return check, end


def _last(path: Path) -> tuple[str, int]:
    """Return the same as `_verified`, reading only the end of the file."""
    size, length = path.stat().st_size, TAIL
    with path.open("rb") as file:
        while True:
            file.seek(max(0, size - length))
            tail = file.read()
            # A last line, whole or not, may be longer: it begins after the newline before it.
            if length >= size or tail.count(b"\n") > 1:
                break
            length *= 2
    whole, newline, unfinished = tail.rpartition(b"\n")
    if not newline:
        return "", 0
    try:
        check = json.loads(whole.rpartition(b"\n")[2])[CHECK]
    except _DAMAGES as error:
        raise JournalError(f"the last line of {path.name} is damaged") from error
    return str(check), size - len(unfinished)


def _digest(before: str, entry: Mapping[str, Any]) -> str:
    text = before + json.dumps(entry, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
