"""Who is running a run: one process at a time, until it lets go or ends, whatever ends it."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from flwr_splitmix.runs.errors import RunError

log = logging.getLogger("flwr.splitmix")

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""How file systems say that they have no locks."""

_TRIES, _PAUSE = 5, 0.02
"""How often, and after how many seconds, a lock is tried again: `is_taken` has it for a moment."""


class Hold:
    """The right to write one run: an exclusive `flock` on a file of its directory.

    The kernel lets go of it when the process ends. What the file says (process, host, time) is
    only for whoever is refused.

    Parameters
    ----------
    file
        The file; it is made, and stays.
    name
        What is held, for the sentence.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name
        self._depth = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold it; within, the same object may take it again.

        Where there are no locks (Windows, some network file systems) nothing is held, and a
        warning says so.

        Raises
        ------
        RunError
            If another process has it, or another object of this one.
        """
        with contextlib.ExitStack() as stack:
            if self._depth == 0:
                self._lock(stack.enter_context(self._file.open("a+", encoding="utf-8")))
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def check_free(self) -> None:
        """Raise RunError if somebody has it."""
        if self._file.exists():
            with self.taken():
                pass

    def is_taken(self) -> bool:
        """Return whether somebody has it; False where there are no locks. Writes nothing."""
        if self._depth:
            return True
        try:
            import fcntl

            with self._file.open(encoding="utf-8") as file:
                # Shared, and for a moment: who takes it in that moment tries again.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (ImportError, FileNotFoundError):
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return False

    def _lock(self, file: TextIO) -> None:
        try:
            _lock_soon(file)
        except ImportError:
            log.warning("%s: nothing keeps two processes apart on this system", self._name)
        except BlockingIOError:
            raise RunError(f"{self._name} is in progress: {_holder(file)}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.warning(
                "%s: nothing keeps two processes apart, its file system has no locks", self._name
            )
        else:
            file.truncate(0)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": now}, file)
            file.flush()


def _lock_soon(file: TextIO) -> None:
    """Lock a file for this process alone, waiting only as long as others may look at it."""
    import fcntl

    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_PAUSE)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(file: TextIO) -> str:
    """Say who holds a lock, as far as its file tells."""
    file.seek(0)
    try:
        said = json.loads(file.read(1000))
        return f"process {int(said['pid'])} on {said['host']} has it since {said['since']}"
    except (ValueError, LookupError, TypeError):  # it has been taken this very moment
        return "another process has it"
