"""The run of a cell: identified by its config, written by one process at a time.

A cell's run is an ordinary run, `<home>/runs/<time>-<cell id>-<hex>/`, with the cell's id in its
config and a log.txt besides the usual files.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.places import runs_directory


def find_runs(home: str | Path | None) -> dict[str, Run]:
    """Return the runs of cells by cell id; of a cell's runs, the newest finished, else the newest.

    Raises
    ------
    RunError
        If the directory of the runs exists but cannot be read.
    """
    by_cell: dict[str, Run] = {}
    for run in Run.all(home):
        cell = run.config.get("cell")
        if isinstance(cell, str):
            earlier_run = by_cell.get(cell)
            if earlier_run is None or earlier_run.status != "finished" or run.status == "finished":
                by_cell[cell] = run
    return by_cell


@contextmanager
def held_run(cell: Cell, home: str | Path | None, source: str) -> Iterator[Run]:
    """Lock the cell's run, an existing or a new one, for this process.

    The lock is held until the block or the process ends.

    Parameters
    ----------
    source
        Source of the data set, recorded in the config of a new run.

    Raises
    ------
    ExperimentError
        If another process is running the cell, or the run's directory cannot be written.
    """
    run = find_runs(home).get(cell.id) or _create(cell, home, source)
    with ExitStack() as stack:
        try:
            stack.enter_context(run.held())
        except RunError as error:
            raise ExperimentError(str(error)) from error
        yield run


def _create(cell: Cell, home: str | Path | None, source: str) -> Run:
    """Create the cell's run, or return the one that another process has created meanwhile."""
    runs = runs_directory(home)
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / ".cells.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        created = find_runs(home).get(cell.id)
        return created or Run.create({**cell.config, "source": source}, name=cell.id, home=home)


def is_complete(run: Run) -> bool:
    """Return whether a run is finished and cleared: its summary then has the cell's own values."""
    # The store itself loads torch, which takes seconds.
    return run.status == "finished" and not any((run.path / "checkpoints").glob("*.safetensors"))


def clear(run: Run) -> None:
    """Remove a finished run's checkpoints and clients' states; those of a grid may fill a disk."""
    for name in ("checkpoints", "clients"):
        shutil.rmtree(run.path / name, ignore_errors=True)
