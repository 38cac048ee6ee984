"""The CSV tracker: one row per round, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.events import RunStarted
from flwr_splitmix.files import append_line, write_atomic
from flwr_splitmix.observers.trackers.tracker import Tracker


class CsvTracker(Tracker):
    """Writes metrics.csv with the numbers of each round, but no texts and no images.

    Parameters
    ----------
    folder
        Where the file is written; None uses the run's directory.
    """

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Read the rows of rounds before the first one from an existing file."""
        place = self.place(event, "")
        self._file = place / "metrics.csv"
        self._columns: list[str] = []
        self._before = [
            row for row in _read(self._file) if int(float(row["round"])) < event.first_round
        ]

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Append the round's numbers; the first ones, and new columns, need the file rewritten."""
        row = {"round": str(server_round), **{n: f"{v:.15g}" for n, v in values.items()}}
        if self._file.exists() and self._columns and row.keys() <= {*self._columns}:
            append_line(self._file, _lines(self._columns, [row]).rstrip("\n"), flush=False)
            return
        rows = [*(_read(self._file) if self._columns else self._before), row]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        header = dict(zip(columns, columns, strict=True))
        write_atomic(self._file, _lines(columns, [header, *rows]).encode(), flush=False)
        self._columns, self._before = columns, []

    def text(self, name: str, text: str, server_round: int) -> None:
        """Do nothing: a table of numbers has no texts."""

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Do nothing: a table of numbers has no images."""

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Do nothing: the file is complete after each round."""


def _read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file, without a last line that a crash left unfinished."""
    if not file.exists():
        return []
    whole, newline, _ = file.read_bytes().rpartition(b"\n")
    return list(csv.DictReader(io.StringIO((whole + newline).decode(), newline="")))


def _lines(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
