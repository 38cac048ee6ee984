"""Grids of cells, run several at a time; finished cells are skipped, interrupted ones resumed."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from flwr_splitmix.experiments.cell_runs import clear, find_runs, held_run, is_complete
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.processes import Processes, forking_context, reason_of
from flwr_splitmix.runs import Run

_PRELOADED_MODULES = ("flwr_splitmix.experiments.running", "timm")  # by all cells of images
_STOP_SECONDS = 30.0  # seconds for a stopped process to write its state

State = Literal["begun", "round", "done", "failed"]


@dataclass(frozen=True)
class CellProgress:
    """Progress or outcome of a cell.

    Parameters
    ----------
    cell, state
        The cell and its state.
    rounds
        Number of finished rounds.
    top1
        The newest accuracy as a fraction; None before the first evaluation.
    reason
        Reason of a failure; otherwise "".
    """

    cell: Cell
    state: State
    rounds: int = 0
    top1: float | None = None
    reason: str = ""


OnProgress = Callable[[CellProgress], None]


@dataclass(frozen=True)
class Workplace:
    """Home, data and device for running cells.

    Parameters
    ----------
    home
        As for `Run.create`.
    source
        Name or folder of the data set.
    device
        "auto", "cpu", "cuda", ...
    """

    home: Path | None
    source: str
    device: str = "auto"


def unfinished(cells: Sequence[Cell], home: Path | None) -> list[Cell]:
    """Return the cells without a finished run, each once."""
    runs = find_runs(home)
    return [
        cell
        for cell in dict.fromkeys(cells)
        if cell.id not in runs or not is_complete(runs[cell.id])
    ]


def run_grid(
    cells: Sequence[Cell], place: Workplace, *, jobs: int = 1, on_progress: OnProgress
) -> list[CellProgress]:
    """Run cells; a failure does not stop the others.

    Parameters
    ----------
    jobs
        Number of cells to run at a time: 1 runs them in this process; with more, each cell runs
        in its own process with one torch thread.
    on_progress
        Called, in this process, at the start of every cell, after every round and at the end.

    Returns
    -------
    The failures.

    Raises
    ------
    KeyboardInterrupt
        If the user stops it; another call resumes the cells.
    """
    failures: list[CellProgress] = []

    def record(progress: CellProgress) -> None:
        if progress.state == "failed":
            failures.append(progress)
        on_progress(progress)

    if jobs > 1:
        _run_apart(cells, place, jobs, record)
    else:
        for cell in cells:
            run_one(cell, place, record)
    return failures


def run_one(cell: Cell, place: Workplace, on_progress: OnProgress) -> None:
    """Run one cell in this process and report its progress.

    A failure is reported, not raised; only interrupts, and errors of `on_progress`, are raised.
    """
    from flwr_splitmix.device import pick_device
    from flwr_splitmix.events import RoundDone
    from flwr_splitmix.experiments.products import fast_products
    from flwr_splitmix.experiments.running import run_cell

    top1: float | None = None

    def on_round(event: RoundDone) -> None:
        nonlocal top1
        if event.evaluation is not None:
            top1 = event.evaluation.accuracy
        on_progress(CellProgress(cell, "round", event.server_round, top1))

    try:
        with held_run(cell, place.home, place.source) as run:
            if not is_complete(run):  # another process may have finished it
                rounds = max(run.checkpoints.rounds(), default=0)
                on_progress(CellProgress(cell, "begun", rounds))
                try:
                    with (
                        log_to(run.path / "log.txt"),
                        fast_products(pick_device(place.device)),
                    ):
                        run_cell(cell, run, place.source, device=place.device, on_round=on_round)
                except Exception as error:
                    run.note_failure(reason_of(error))
                    raise
            clear(run)
            top1 = _top1(run)
    except _ReceiverGoneError:
        raise
    except Exception as error:
        on_progress(CellProgress(cell, "failed", reason=reason_of(error)))
    else:
        on_progress(CellProgress(cell, "done", cell.recipe.epochs, top1))


def _top1(run: Run) -> float | None:
    value = (run.summary or {}).get("top1")
    return float(value) if isinstance(value, (int, float)) else None


@contextlib.contextmanager
def log_to(file: Path) -> Iterator[None]:
    """Write a run's log, and the traceback of a failure, to a file instead of the terminal."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("flwr", "flwr_splitmix")]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        loggers[-1].exception("the cell failed")
        raise
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        handler.close()


def _run_apart(cells: Sequence[Cell], place: Workplace, jobs: int, on_progress: OnProgress) -> None:
    processes = Processes[Cell, CellProgress](
        forking_context(_PRELOADED_MODULES),
        partial(_work, place),
        ended=lambda progress: progress.state in ("done", "failed"),
        died=lambda cell, reason: CellProgress(cell, "failed", reason=reason),
        patience=_STOP_SECONDS,
    )
    waiting = deque(cells)
    try:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                processes.start(waiting.popleft())
            for progress in processes.wait():
                on_progress(progress)
    finally:
        processes.stop()


def _work(place: Workplace, cell: Cell, connection: Connection) -> None:
    """Run one cell; called in its own process."""
    import torch

    # Ctrl-C reaches all processes of a terminal; the parent decides which ones stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)

    def on_progress(progress: CellProgress) -> None:
        try:
            connection.send(progress)
        except ConnectionError as error:
            raise _ReceiverGoneError from error

    with contextlib.suppress(KeyboardInterrupt, _ReceiverGoneError):
        run_one(cell, place, on_progress)


class _ReceiverGoneError(Exception):
    """The process that receives the reports has ended."""
