"""Files that are written whole or not at all, and the home of those kept; without torch."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOME = "SPLITMIX_HOME"
"""Variable of the environment that names the home."""


def home_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of runs, models and states: `chosen`, $SPLITMIX_HOME, or ~/.splitmix.

    Its "~" is not expanded: that of an unknown user is an error, which callers word.
    """
    return Path(chosen or os.environ.get(HOME) or "~/.splitmix")


def expanded(path: str | Path, key: str, kind: type[Exception]) -> Path:
    """Return a path whose "~" or "~user" is replaced by the folder that it stands for.

    Parameters
    ----------
    key
        What names the path, for the error.
    kind
        Class of the error.

    Raises
    ------
    Exception
        Of that class, if there is no such user, or the user has no home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = Path(path).parts[0]
        if key == HOME and not os.environ.get(HOME):
            raise kind(
                f"{HOME} is not set, and this user has no home folder: set it to an absolute path"
            ) from None
        raise kind(
            f"{key} is {str(path)!r}, and this machine knows no folder {home!r}; give an absolute "
            "path"
        ) from None


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


def _open_beside(path: Path, mode: int) -> tuple[int, Path]:
    """Create a hidden file beside `path`; its mode is `mode` without the bits of the umask."""
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), name
        except FileExistsError:
            continue  # try other digits


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


NOT_FINITE = ("nan", "inf", "-inf")
"""The texts that stand in JSON for the numbers that it lacks."""


def strict_json(value: Any, **options: Any) -> str:
    """Return `value` as JSON that any parser reads: NaN and infinities become text ("nan", "inf").

    `options` are those of `json.dumps`.
    """
    return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """Return plain values with each NaN or infinity as one of `NOT_FINITE`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


_FLOAT = "splitmix-float"


def marked(value: Any) -> Any:
    """Return plain values with each NaN or infinity as {"splitmix-float": "nan"}, for JSON.

    Unlike those of `finite`, they cannot be taken for text that a user wrote.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        return {key: marked(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(entry) for entry in value]
    return value


def unmarked(value: Any) -> Any:
    """Return what `marked` was given, of plain values as read from JSON.

    Raises
    ------
    ValueError
        If what is marked is not a number, or values are nested too deeply.
    """
    try:
        return _unmarked(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(str(value[_FLOAT]))
        return {key: _unmarked(entry) for key, entry in value.items()}
    return [_unmarked(entry) for entry in value] if isinstance(value, list) else value


def check_regular(path: Path) -> None:
    """Raise OSError if a path is there and no regular file: of a pipe no reader sees the end."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")


MOST_READ = 2**28
"""Most bytes of a file that is read whole: those of runs and of exports have far fewer."""


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; raise OSError if it is too large, or no regular file."""
    check_regular(path)
    if (size := path.stat().st_size) > MOST_READ:
        raise OSError(f"it has {size} bytes, and {MOST_READ} are the most that are read")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    OSError
        If the file cannot be read, is not a regular file, or has more than `MOST_READ` bytes.
    ValueError
        If it is not JSON, is nested too deeply, or holds half a character (a lone surrogate).
    """
    data = read_whole(path)
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"its JSON is damaged at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    refuse_half_characters(text, value)
    return value


def refuse_half_characters(text: str, value: Any) -> None:
    """Raise ValueError if a value, read from JSON in UTF-8, holds a lone surrogate."""
    if "\\ud" in text.lower():  # else there is none, as UTF-8 has no surrogates
        json.dumps(value, ensure_ascii=False).encode()


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
