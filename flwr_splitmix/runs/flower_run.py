"""The link between a run's directory and Flower's run id. Importable without torch."""

from __future__ import annotations

import sys
from pathlib import Path

from flwr_splitmix.files.reading import read_json
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.run import Run

FILE = "flower.json"
LOG = "flower.log"
"""Flower's log of the run, if `splitmix run` followed it."""

ABOUT_RESUMING = frozenset({"resume", "run-dir"})
"""Keys of an app for the run to resume, and its place; they do not affect training."""

_NEWEST = 50  # only so many runs are searched: those that Flower ran last


def note_flower_run(run: Run, flower_run: int) -> None:
    """Record Flower's id of the run in progress, and its Python environment.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    write_json(run.path / FILE, {"run-id": str(flower_run), "environment": sys.prefix})


def find_flower_run(flower_run: int, home: str | Path | None) -> Run | None:
    """Return the run that Flower ran under this id; None if there is none, or not yet.

    Only the 50 runs that were started or resumed last are searched.
    """
    try:
        runs = Run.all(home)
    except RunError:
        return None
    for run in sorted(runs, key=_noted, reverse=True)[:_NEWEST]:
        if facts_of(run).get("run-id") == str(flower_run):
            return run
    return None


def _noted(run: Run) -> float:
    """Return when a run was last given an id of Flower; 0 if never."""
    try:
        return (run.path / FILE).stat().st_mtime
    except OSError:
        return 0.0


def facts_of(run: Run) -> dict[str, str]:
    """Return the facts that `note_flower_run` wrote; empty if there are none."""
    try:
        facts = read_json(run.path / FILE)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
