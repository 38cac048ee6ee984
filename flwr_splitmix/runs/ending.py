"""The ending of a run: summary.json if it is finished, failure.json if an error ended it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.columns import read_summary
from flwr_splitmix.runs.damage import read_object
from flwr_splitmix.runs.metrics_file import Row
from flwr_splitmix.words import printable


class Ending:
    """The files in a run's folder about its ending; neither exists if it has not ended.

    Writing raises OSError if a file cannot be written; reading raises RunError if it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._summary = folder / "summary.json"
        self._failure = folder / "failure.json"

    @property
    def finished(self) -> bool:
        """Whether there is a summary."""
        return self._summary.exists()

    @property
    def summary(self) -> Row | None:
        """The summary of a finished run; None for any other."""
        return read_summary(self._summary) if self.finished else None

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_json(self._summary, dict(summary))

    def reopen(self) -> None:
        """Remove the summary: the run is unfinished again."""
        self._summary.unlink(missing_ok=True)

    @property
    def failure(self) -> str | None:
        """Description of the error that ended the run; None if none did."""
        if not self._failure.exists():
            return None
        return printable(str(read_object(self._failure).get("error", "")))

    def note_failure(self, error: str | None) -> None:
        """Write the error that ended the run; None removes it."""
        if error is None:
            self._failure.unlink(missing_ok=True)
        else:
            at = datetime.now(UTC).isoformat("T", "seconds")
            write_json(self._failure, {"error": error, "at": at})
