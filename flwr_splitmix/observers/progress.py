"""The progress of a run, in a small file that others may read while it runs."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from flwr_splitmix.events import RoundBegun, RoundDone, RunEnded, RunStarted, StepDone
from flwr_splitmix.files.writing import write_atomic
from flwr_splitmix.observers.observer import Observer

FILE = "progress.json"

EVERY = 0.5
"""Least seconds between the last write and the next one for a step."""

log = logging.getLogger("flwr.splitmix")


class ProgressFile(Observer):
    """Keeps a run's progress.json: rounds, current round, its steps so far, and the last round's.

    A reader sees a complete file at any time. Steps are written at most twice a second, and the
    file is not flushed to disk; a failure to write it does not stop the run.

    Parameters
    ----------
    folder
        The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._written = 0.0
        self._facts = {"rounds": 0, "round": 0, "steps_done": 0, "steps": 0}

    def on_start(self, event: RunStarted) -> None:
        """Write the number of rounds."""
        self._note(rounds=event.num_rounds, round=event.first_round - 1, steps_done=0)

    def on_begin(self, event: RoundBegun) -> None:
        """Write that a round begins."""
        self._note(round=event.server_round, steps_done=0)

    def on_step(self, event: StepDone) -> None:
        """Count a step; not every step is written."""
        self._facts["steps_done"] = event.number + 1
        if time.monotonic() > self._written + EVERY:
            self._note()

    def on_round(self, event: RoundDone) -> None:
        """Write the round's number of steps, since the next round is likely to have as many."""
        self._note(steps_done=event.steps, steps=event.steps)

    def on_end(self, event: RunEnded) -> None:
        """Remove the file."""
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._file, error.strerror)

    def _note(self, **facts: int) -> None:
        self._facts |= facts
        self._written = time.monotonic()
        try:
            write_atomic(self._file, json.dumps(self._facts).encode(), flush=False, parents=False)
        except OSError as error:
            log.debug("progress cannot be written: %s", error.strerror)
