"""The run of a cell: identified by its config, written by one process at a time.

A cell's run is a run like any other, `<home>/runs/<time>-<cell id>-<hex>/`, whose config says the
id of its cell. Besides the usual files it has log.txt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.runs import Run, RunError


def find_runs(home: str | Path | None) -> dict[str, Run]:
    """Return the runs of cells by cell id; of several of one cell a finished, then the newest.

    Raises
    ------
    RunError
        If the directory of the runs exists but cannot be read.
    """
    by_cell: dict[str, Run] = {}
    for run in Run.list(home):
        cell = run.config.get("cell")
        if isinstance(cell, str):
            known = by_cell.get(cell)
            if known is None or known.status != "finished" or run.status == "finished":
                by_cell[cell] = run
    return by_cell


@contextmanager
def held_run(cell: Cell, home: str | Path | None, source: str) -> Iterator[Run]:
    """Give the cell's run to this process alone: the one it has, or a new one.

    It is held until the block or the process ends, whatever ends it.

    Parameters
    ----------
    source
        Where the data set is read from; noted in the config of a new run.

    Raises
    ------
    ExperimentError
        If another process is running the cell.
    """
    run = find_runs(home).get(cell.id) or _create(cell, home, source)
    with ExitStack() as stack:
        try:
            stack.enter_context(run.held())
        except RunError as error:
            raise ExperimentError(f"another process is running it ({run.id})") from error
        yield run


def _create(cell: Cell, home: str | Path | None, source: str) -> Run:
    import fcntl  # not on Windows, where results can be looked at all the same

    run = Run.create({**cell.config, "source": source}, name=cell.id, home=home)
    with (run.path.parent / ".cells.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have made one since we looked; one after the other gives way to it.
        others = [r for r in Run.list(home) if r.config.get("cell") == cell.id and r.id != run.id]
        if others:
            shutil.rmtree(run.path)
            return others[0]
    return run


def clear(run: Run) -> None:
    """Remove a finished run's checkpoints and clients' states: a grid's would fill a disk."""
    for name in ("checkpoints", "clients"):
        shutil.rmtree(run.path / name, ignore_errors=True)
