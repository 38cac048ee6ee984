"""The CSV tracker: one row per round, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.events import RunStarted
from flwr_splitmix.files import write_atomic
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
        self._rows = [
            row for row in _read(self._file) if int(float(row["round"])) < event.first_round
        ]

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Rewrite the file, with the round's numbers added."""
        self._rows.append(
            {"round": str(server_round), **{n: f"{v:.15g}" for n, v in values.items()}}
        )
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomic(self._file, text.getvalue().encode(), flush=False)

    def text(self, name: str, text: str, server_round: int) -> None:
        """Do nothing: a table of numbers has no texts."""

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Do nothing: a table of numbers has no images."""

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Do nothing: the file is complete after each round."""


def _read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
