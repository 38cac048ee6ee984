"""Files that are written whole or not at all, and lines that are appended so."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import strict_json


def write_atomic(
    path: Path, data: bytes, *, flush: bool = True, private: bool = False, parents: bool = True
) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Parameters
    ----------
    flush
        Whether to wait until the disk has it. Without, it outlives this process, however that
        ends, but not a loss of power.
    private
        Whether only the owner may read it; others may as the process's umask says.
    parents
        Whether to make missing folders, rather than fail: not where one that was removed must not
        come back.

    Raises
    ------
    OSError
        If the data cannot be written (a full disk, say); the old file is intact then.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = _open_beside(path, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    if flush:
        flush_folder(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, unless there is one, of another process, say.

    Raises
    ------
    OSError
        If the data cannot be written.
    """
    handle, beside = _open_beside(path, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # A rename would replace the other process's, which it may use already.
        with contextlib.suppress(FileExistsError):
            _link(beside, path, data)
    finally:
        beside.unlink(missing_ok=True)
    flush_folder(path.parent)


def _link(written: Path, path: Path, data: bytes) -> None:
    """Give a file another name; without hard links, write its data there."""
    try:
        os.link(written, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with path.open("xb") as file:
            path.chmod(0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _open_beside(path: Path, mode: int) -> tuple[int, Path]:
    """Create a hidden file beside `path`; its mode is `mode` without the bits of the umask."""
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), name
        except FileExistsError:
            continue  # try other digits


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without hard links, such as those of memory cards."""

ABANDONED = 3600.0
"""Seconds without a change after which no process writes an unfinished file any more."""


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove what processes that were killed in `write_atomic` have left in a folder.

    A file changed within the last `ABANDONED` seconds stays, as it may still be written.

    Parameters
    ----------
    names
        Pattern of the names that the files were to get, such as "*.safetensors".
    """
    before = time.time() - ABANDONED
    for file in folder.glob(f".{names}.{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):  # another process may remove it first
            if file.stat().st_mtime < before:
                file.unlink()


def follow_umask(path: Path) -> None:
    """Give a file that another library wrote the mode that new files have."""
    handle, new = _open_beside(path, 0o666)
    try:
        path.chmod(stat.S_IMODE(os.fstat(handle).st_mode))
    finally:
        os.close(handle)
        new.unlink()


def write_json(path: Path, value: Any, *, private: bool = False, parents: bool = True) -> None:
    """Write `value` as `strict_json`, indented, atomically; for the options see `write_atomic`."""
    text = strict_json(value, indent=2, sort_keys=True) + "\n"
    write_atomic(path, text.encode(), private=private, parents=parents)


def write_all(file: int, data: bytes) -> None:
    """Write bytes to an open file, however many calls that takes; raise OSError as they do."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def append_line(path: Path, line: str, *, flush: bool = True) -> None:
    """Append a line, in place of one that a crash left unfinished.

    Parameters
    ----------
    flush
        Whether to return only once the line is on the disk.

    Raises
    ------
    OSError
        If it cannot be written; the lines before are intact.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        whole = _end_of_lines(file)
        try:
            os.ftruncate(file, whole)
            os.lseek(file, whole, os.SEEK_SET)
            write_all(file, f"{line}\n".encode())
            if flush:
                os.fsync(file)
        except OSError:
            os.ftruncate(file, whole)
            raise
    finally:
        os.close(file)
    if flush and not whole:
        flush_folder(path.parent)


def _end_of_lines(file: int) -> int:
    end = os.lseek(file, 0, os.SEEK_END)
    while end:
        start = max(0, end - 4096)
        last = os.pread(file, end - start, start).rfind(b"\n")
        if last >= 0:
            return start + last + 1
        end = start
    return 0


def flush_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: a new or renamed file is lost without.

    Some network file systems cannot do so, and need not.

    Raises
    ------
    OSError
        If the folder cannot be read, or the disk reports an error.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
