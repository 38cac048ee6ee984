"""The CSV tracker: one row per round, for spreadsheets."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.events import RunStarted
from flwr_splitmix.files.writing import append_line, write_atomic
from flwr_splitmix.observers.trackers.tracker import Tracker

log = logging.getLogger("flwr.splitmix")


class CsvTracker(Tracker):
    """Writes metrics.csv with the numbers of each round, but no texts and no images.

    Parameters
    ----------
    folder
        Where the file is written; None uses the run's directory.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        self._newest: dict[str, str] = {}

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Read the rows of rounds before the first one from an existing file.

        A file without a column of rounds, such as a spreadsheet's with ";" as separator, is set
        aside.
        """
        place = self.place(event, "")
        self._file = place / "metrics.csv"
        self._columns: list[str] = []
        self._before = [row for row in self._rows() if _round(row) < event.first_round]

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Append the round's numbers; the first ones, and new columns, need the file rewritten."""
        row = {"round": str(server_round), **{n: f"{v:.15g}" for n, v in values.items()}}
        if self._columns and row.keys() <= {*self._columns} and _ends_a_line(self._file):
            append_line(self._file, _lines(self._columns, [row]).rstrip("\n"), flush=False)
            self._newest = row
            return
        rows = [*(self._rows() if self._columns else self._before), row]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        header = dict(zip(columns, columns, strict=True))
        write_atomic(self._file, _lines(columns, [header, *rows]).encode(), flush=False)
        self._columns, self._before, self._newest = columns, [], row

    def text(self, name: str, text: str, server_round: int) -> None:
        """Do nothing: a table of numbers has no texts."""

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Do nothing: a table of numbers has no images."""

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Do nothing: the file is complete after each round."""

    def state(self) -> dict[str, Any]:
        """Return the totals of bytes, and the newest row."""
        return {**super().state(), "newest": self._newest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        super().restore(state)
        self._newest = dict(state["newest"])

    def _rows(self) -> list[dict[str, str]]:
        """Return the file's rows.

        A last line without an end may be whole, as an editor may have saved it, or lack digits:
        the newest row replaces it.
        """
        rows = _rows(self._file)
        if self._newest and self._file.exists() and not _ends_a_line(self._file):
            rows += [self._newest] if all(_round(r) < _round(self._newest) for r in rows) else []
        return rows


def _ends_a_line(file: Path) -> bool:
    """Return whether a file exists, and its last line has an end."""
    if not file.exists() or not file.stat().st_size:
        return False
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read() == b"\n"


def _rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file; one that is not a table of rounds is set aside, with a warning."""
    if not file.exists():
        return []
    try:
        return _read(file.read_bytes())
    except (ValueError, csv.Error) as error:
        names = (file.with_name(f"{file.stem}-set-aside-{n}.csv") for n in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        log.warning(
            "%s is not a table that this tracker wrote (%s), so it is now %s, and the rows of "
            "earlier rounds are only there",
            file,
            error,
            aside,
        )
        return []


def _read(content: bytes) -> list[dict[str, str]]:
    """Return the rows of a file's content, without a last line that has no end.

    Raises
    ------
    ValueError, csv.Error
        If it is not empty and no table with a number in the column `round`.
    """
    whole, newline, _ = content.rpartition(b"\n")
    text = (whole + newline).decode("utf-8-sig")  # spreadsheets begin a file with a mark
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = list(reader)
    if content and "round" not in (reader.fieldnames or ()):
        raise ValueError("it has no column 'round', separated by ','")
    if any(len(row) > len(reader.fieldnames or ()) for row in rows):
        raise ValueError("a row has more values than there are columns")
    for row in rows:
        _round(row)
    return rows


def _round(row: Mapping[str, str]) -> int:
    try:
        return int(float(row["round"]))
    except (TypeError, OverflowError):  # a row that ends before it; an infinity
        raise ValueError(f"a round is {row['round']!r:.80}") from None


def _lines(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
