"""Tasks in their own processes, several at a time; one that dies does not affect others."""

from __future__ import annotations

import contextlib
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
from flwr_splitmix.experiments.processes import Processes, forking_context, reason_of

_STOP_SECONDS = 10.0  # seconds for a stopped process to end

State = Literal["begun", "done", "not applicable", "failed"]


@dataclass(frozen=True)
class TaskProgress:
    """Progress or outcome of a task.

    Parameters
    ----------
    task, state
        The task and its state.
    words
        The result, or the reason why there is none.
    """

    task: Task
    state: State
    words: str = ""


OnProgress = Callable[[TaskProgress], None]


def run_tasks(
    tasks: Sequence[Task],
    place: Place,
    *,
    jobs: int = 1,
    apart: bool = True,
    on_progress: OnProgress,
) -> list[TaskProgress]:
    """Run tasks; a task fails if one that it needs has failed, and all others are run.

    Parameters
    ----------
    tasks
        The tasks, each after those that it needs.
    jobs
        Number of tasks at a time, each with one torch thread.
    apart
        Whether each task runs in its own process; if not, all run in this one, in order.
    on_progress
        Called, in this process, at the start and the end of every task.

    Returns
    -------
    The failures.
    """
    if not apart:
        return _run_here(tasks, place, on_progress)
    return _run_apart(tasks, place, jobs, on_progress)


def _run_here(tasks: Sequence[Task], place: Place, on_progress: OnProgress) -> list[TaskProgress]:
    failures: dict[Task, TaskProgress] = {}
    for task in tasks:
        if broken := [before for before in task.needs if before in failures]:
            progress = TaskProgress(task, "failed", f"there is no {broken[0]}")
        else:
            on_progress(TaskProgress(task, "begun"))
            progress = _outcome(task, place)
        if progress.state == "failed":
            failures[task] = progress
        on_progress(progress)
    return list(failures.values())


def _outcome(task: Task, place: Place) -> TaskProgress:
    """Run a task in this process and return its outcome; errors are failures."""
    from flwr_splitmix.device import pick_device
    from flwr_splitmix.experiments.products import fast_products

    try:
        work = import_module(place.matrix.work)
        place.folder.mkdir(parents=True, exist_ok=True)
        with log_to(place.folder / "log.txt"), fast_products(pick_device(place.device)):
            state, words = work.do(task, place)
    except Exception as error:
        return TaskProgress(task, "failed", reason_of(error))
    return TaskProgress(task, state, words)


def _run_apart(
    tasks: Sequence[Task], place: Place, jobs: int, on_progress: OnProgress
) -> list[TaskProgress]:
    processes = Processes[Task, TaskProgress](
        forking_context([place.matrix.work, *place.matrix.loads]),
        partial(_work, place),
        ended=lambda progress: True,
        died=lambda task, reason: TaskProgress(task, "failed", reason),
        patience=_STOP_SECONDS,
    )
    waiting, queue = list(tasks), _Queue(tasks)
    try:
        while waiting or processes:
            while len(processes) < jobs and (progress := queue.next(waiting)) is not None:
                on_progress(progress)
                if progress.state == "begun":
                    processes.start(progress.task)
            if not processes:  # the last tasks failed because of ones that they need
                continue
            for progress in processes.wait():
                queue.end(progress)
                on_progress(progress)
    finally:
        processes.stop()
    return list(queue.failures.values())


class _Queue:
    """Tasks that have not ended, and tasks that have failed."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.open = set(tasks)
        self.failures: dict[Task, TaskProgress] = {}

    def next(self, waiting: list[Task]) -> TaskProgress | None:
        """Remove the first task that can begin, or that fails because of one that it needs.

        Returns
        -------
        Its progress, "begun" or "failed"; None if all tasks must wait.
        """
        for task in waiting:
            broken = [before for before in task.needs if before in self.failures]
            if broken:
                waiting.remove(task)
                return self.end(TaskProgress(task, "failed", f"this failed before: {broken[0]}"))
            if not any(before in self.open for before in task.needs):
                waiting.remove(task)
                return TaskProgress(task, "begun")
        return None

    def end(self, progress: TaskProgress) -> TaskProgress:
        """Record the outcome of a task."""
        self.open.discard(progress.task)
        if progress.state == "failed":
            self.failures[progress.task] = progress
        return progress


def _work(place: Place, task: Task, connection: Connection) -> None:
    """Run one task; called in its own process."""
    import torch

    # Ctrl-C reaches all processes of a terminal; the parent decides which ones stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with contextlib.suppress(ConnectionError):
        connection.send(_outcome(task, place))
