"""The beginnings of a run's rounds: who was asked for something, line by line as it happens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flwr_splitmix.files import flush_folder, write_all
from flwr_splitmix.runs.damage import unreadable


class Begun(NamedTuple):
    """A round's training or evaluation that has begun, whether it finished or not."""

    round: int
    clients: list[int]
    evaluates: bool


def append_begun(path: Path, begun: Begun) -> None:
    """Append a line; it is on the disk when this returns.

    Raises
    ------
    OSError
        If it cannot be written; the lines before are intact.
    """
    line = json.dumps(begun._asdict()) + "\n"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        whole = _end_of_lines(file)
        try:
            os.ftruncate(file, whole)  # a line that a crash left unfinished has not begun a round
            os.lseek(file, whole, os.SEEK_SET)
            write_all(file, line.encode())
            os.fsync(file)
        except OSError:
            os.ftruncate(file, whole)
            raise
    finally:
        os.close(file)
    if not whole:
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


def read_begun(path: Path) -> list[Begun]:
    """Return what has begun, in order; a missing file has nothing.

    Raises
    ------
    RunError
        If the file cannot be read, or holds anything else.
    """
    try:
        *lines, _ = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: str) -> Begun:
    try:
        values: Any = json.loads(line)
        begun = Begun(**values)
    except (ValueError, TypeError, RecursionError):
        raise unreadable(path, f"line {number} is damaged") from None
    numbers: Iterable[Any] = begun.clients if isinstance(begun.clients, list) else [None]
    if any(type(one) is not int or one < 0 for one in (begun.round, *numbers)):
        raise unreadable(path, f"line {number} holds other values than numbers of clients")
    return begun
