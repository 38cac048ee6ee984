"""Tasks in processes of their own, several at a time: one that dies costs no other."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Literal

from flwr_splitmix.experiments.grid import log_to
from flwr_splitmix.experiments.privacy.cells import Place
from flwr_splitmix.experiments.privacy.tasks import Task
from flwr_splitmix.experiments.processes import Processes, reason_of

_PATIENCE = 10.0  # seconds that a stopped process has to end

State = Literal["begun", "done", "not applicable", "failed"]


@dataclass(frozen=True)
class Progress:
    """What became of a task.

    Parameters
    ----------
    words
        What came out, or why nothing did.
    """

    task: Task
    state: State
    words: str = ""


OnProgress = Callable[[Progress], None]


def run_tasks(
    tasks: Sequence[Task],
    place: Place,
    *,
    jobs: int = 1,
    apart: bool = True,
    on_progress: OnProgress,
) -> list[Progress]:
    """Do tasks; those that need one that failed fail too, all others are done.

    Parameters
    ----------
    tasks
        Each behind what it needs.
    jobs
        How many at a time, each with one torch thread.
    apart
        Whether each is a process of its own; if not they are done here, one after the other.

    Returns
    -------
    The failures.
    """
    if not apart:
        return _run_here(tasks, place, on_progress)
    return _run_apart(tasks, place, jobs, on_progress)


def _run_here(tasks: Sequence[Task], place: Place, on_progress: OnProgress) -> list[Progress]:
    failures: dict[Task, Progress] = {}
    for task in tasks:
        if broken := [before for before in task.needs if before in failures]:
            progress = Progress(task, "failed", f"there is no {broken[0]}")
        else:
            on_progress(Progress(task, "begun"))
            progress = _outcome(task, place)
        if progress.state == "failed":
            failures[task] = progress
        on_progress(progress)
    return list(failures.values())


def _outcome(task: Task, place: Place) -> Progress:
    """Do a task in this process; only an interrupt is raised."""
    try:
        work = import_module(place.matrix.work)
        place.folder.mkdir(parents=True, exist_ok=True)
        with log_to(place.folder / "log.txt"):
            state, words = work.do(task, place)
    except Exception as error:
        return Progress(task, "failed", reason_of(error))
    return Progress(task, state, words)


def _run_apart(tasks: Sequence[Task], place: Place, jobs: int, tell: OnProgress) -> list[Progress]:
    # Forked from a server that has loaded torch and nothing else: a process costs little, and none
    # has another's threads or GPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([place.matrix.work, *place.matrix.loads])
    processes = Processes[Task, Progress](
        context,
        partial(_work, place),
        ended=lambda progress: True,
        died=lambda task, reason: Progress(task, "failed", reason),
        patience=_PATIENCE,
    )
    waiting, queue = list(tasks), _Queue(tasks)
    try:
        while waiting or processes:
            while len(processes) < jobs and (progress := queue.next(waiting)) is not None:
                tell(progress)
                if progress.state == "begun":
                    processes.start(progress.task)
            for progress in processes.wait():
                queue.end(progress)
                tell(progress)
    finally:
        processes.stop()
    return list(queue.failures.values())


class _Queue:
    """Which tasks have not ended, and which have failed."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.open = set(tasks)
        self.failures: dict[Task, Progress] = {}

    def next(self, waiting: list[Task]) -> Progress | None:
        """Take the first task out whose needs are met, as begun, or never will be, as failed."""
        for task in waiting:
            broken = [before for before in task.needs if before in self.failures]
            if broken:
                waiting.remove(task)
                return self.end(Progress(task, "failed", f"this failed before: {broken[0]}"))
            if not any(before in self.open for before in task.needs):
                waiting.remove(task)
                return Progress(task, "begun")
        return None

    def end(self, progress: Progress) -> Progress:
        """Note what became of a task."""
        self.open.discard(progress.task)
        if progress.state == "failed":
            self.failures[progress.task] = progress
        return progress


def _work(place: Place, task: Task, connection: Connection) -> None:
    """Do one task in a process of its own."""
    import torch

    # The parent decides who stops: Ctrl-C reaches all processes of a terminal at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with contextlib.suppress(ConnectionError):
        connection.send(_outcome(task, place))
