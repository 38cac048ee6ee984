"""The beginnings of a run's rounds and the clients asked, line by line as it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr_splitmix.files.reading import read_whole
from flwr_splitmix.files.writing import append_line
from flwr_splitmix.runs.damage import unreadable


class Begun(NamedTuple):
    """A round's training or evaluation that has begun, whether it finished or not.

    `again` has those of `clients` that were lost in the round that they had begun before, so that
    they send its batches again. `steps` is the length of a round of training, in which no client is
    asked for more batches; None if it is not known. `protection` is a digest of the mixer and
    the noise of its uploads: a line with another one does not give the cost of an attempt; "" if
    that is not known.
    """

    round: int
    clients: Sequence[int]
    evaluates: bool
    again: Sequence[int] = ()
    steps: int | None = None
    protection: str = ""


def append_begun(path: Path, begun: Begun) -> None:
    """Append a line; it is on the disk when this returns; raise OSError as `append_line` does."""
    append_line(path, json.dumps(begun._asdict()))


def read_begun(path: Path) -> list[Begun]:
    """Return the beginnings, in order; a missing file has none.

    Raises
    ------
    RunError
        If the file cannot be read, or holds anything else.
    """
    try:
        *lines, _ = read_whole(path).decode("utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: str) -> Begun:
    try:
        values: Any = json.loads(line)
        lacks = sorted(Begun._fields - values.keys())
        begun = None if lacks else Begun(**values)
    except (AttributeError, ValueError, TypeError, RecursionError):
        raise unreadable(path, f"line {number} is damaged") from None
    if begun is None:
        raise unreadable(
            path,
            f"line {number} lacks {lacks[0]!r}, which this version of flwr-splitmix always writes",
            "resume with the version that began the run, or begin a new run",
        )
    lists = all(isinstance(named, list) for named in (begun.clients, begun.again))
    steps = 0 if begun.steps is None else begun.steps
    numbers: Sequence[Any] = (None,)
    if lists:
        numbers = (begun.round, steps, *begun.clients, *begun.again)
    whole = all(type(one) is int and one >= 0 for one in numbers)
    if not whole or not isinstance(begun.protection, str):
        raise unreadable(path, f"line {number} holds other values than numbers of clients")
    return begun
