"""The lock of a run: one process at a time holds it, until it releases it or ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from flwr_splitmix.files.writing import write_all
from flwr_splitmix.runs.errors import RunError

log = logging.getLogger("flwr.splitmix")

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without locks."""

_TRIES, _PAUSE = 5, 0.02
"""Attempts to lock, and seconds between them: `is_taken` briefly holds the lock itself."""


class Hold:
    """The right to write one run: an exclusive `flock` on a file in its directory.

    The kernel releases the lock when the process ends. The file's content (process, host, time)
    only serves the error message for others.

    Parameters
    ----------
    file
        The lock file; it is created, and never removed.
    name
        The name of the locked thing, for messages.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name
        self._depth = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock within a `with` block; the same object may take it again inside.

        On file systems without locks (some network file systems) nothing is locked, and a warning
        is logged.

        Raises
        ------
        RunError
            If another process, or another object of this process, holds the lock, or the lock
            cannot be written.
        """
        with contextlib.ExitStack() as stack:
            if self._depth == 0:
                try:
                    self._lock(stack.enter_context(self._file.open("a+", encoding="utf-8")))
                except OSError as error:
                    raise RunError(
                        f"{self._name} cannot be written to {self._file.parent}: "
                        f"{error.strerror or error}; it must be writable, with free space"
                    ) from error
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def check_free(self) -> None:
        """Raise RunError if another process or object holds the lock."""
        if self._file.exists():
            with self.taken():
                pass

    def is_taken(self) -> bool:
        """Return whether the lock is held; False where there are no locks. Nothing is written."""
        if self._depth:
            return True
        try:
            with self._file.open(encoding="utf-8") as file:
                # Shared and brief: a process that tries to lock meanwhile tries again.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return False

    def _lock(self, file: TextIO) -> None:
        try:
            _lock_soon(file)
        except BlockingIOError:
            raise RunError(f"{self._name} is in progress: {_holder(file)}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.warning(
                "%s: nothing keeps two processes apart, its file system has no locks", self._name
            )
        else:
            since = datetime.now(UTC).isoformat(timespec="seconds")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.ftruncate(file.fileno(), 0)
            # Without a buffer, which would be written again when the file is closed.
            write_all(file.fileno(), json.dumps(holder).encode())


def _lock_soon(file: TextIO) -> None:
    """Lock a file exclusively, retrying only as long as `is_taken` may hold it elsewhere."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_PAUSE)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(file: TextIO) -> str:
    """Describe the process that holds a lock, as far as the file has it."""
    file.seek(0)
    try:
        holder = json.loads(file.read(1000))
        return f"process {int(holder['pid'])} on {holder['host']} has it since {holder['since']}"
    except (ValueError, LookupError, TypeError):  # it has only just been taken
        return "another process has it"
