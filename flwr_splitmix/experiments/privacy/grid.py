"""Tasks in processes of their own, several at a time: one that dies costs no other."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

from flwr_splitmix.experiments.privacy.cells import Place
from flwr_splitmix.experiments.privacy.tasks import Task

_PATIENCE = 10.0  # seconds that a stopped process has to end

_PRELOADED = [
    "flwr_splitmix.experiments.privacy.work",
    "timm",
    "sklearn.cluster",
    "sklearn.metrics",
    "scipy.stats",
    "torchmetrics",
]
"""What tasks load, which takes as long as a short one does."""

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
    return _Processes(place, on_progress).run(tasks, jobs)


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
    from flwr_splitmix.experiments.privacy.work import do

    try:
        state, words = do(task, place)
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        plain = isinstance(error, (ValueError, RuntimeError)) and text
        return Progress(task, "failed", text if plain else f"{type(error).__name__}: {text}")
    return Progress(task, state, words)


class _Processes:
    def __init__(self, place: Place, tell: OnProgress) -> None:
        self.place = place
        self.tell = tell
        # Forked from a server that has loaded torch and nothing else: a process costs little, and
        # none has another's threads or GPU.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(_PRELOADED)
        self.running: dict[Connection, tuple[BaseProcess, Task]] = {}
        self.failures: dict[Task, Progress] = {}
        self.open: set[Task] = set()

    def run(self, tasks: Sequence[Task], jobs: int) -> list[Progress]:
        waiting = list(tasks)
        self.open = set(tasks)
        try:
            while waiting or self.running:
                while len(self.running) < jobs and (task := self._next(waiting)) is not None:
                    self._start(task)
                for connection in wait(list(self.running)):
                    assert isinstance(connection, Connection)
                    self._receive(connection)
        finally:
            self._stop()
        return list(self.failures.values())

    def _next(self, waiting: list[Task]) -> Task | None:
        """Take the first task out whose needs are met; tell of those whose never will be."""
        for task in list(waiting):
            if broken := [before for before in task.needs if before in self.failures]:
                waiting.remove(task)
                self._end(Progress(task, "failed", f"this failed before: {broken[0]}"))
            elif not any(before in self.open for before in task.needs):
                waiting.remove(task)
                return task
        return None

    def _start(self, task: Task) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_work, args=(task, self.place, theirs))
        process.start()
        theirs.close()
        self.running[ours] = (process, task)
        self.tell(Progress(task, "begun"))

    def _receive(self, connection: Connection) -> None:
        process, task = self.running.pop(connection)
        try:
            progress: Progress = connection.recv()
        except EOFError:  # it died without a word
            process.join()
            reason = f"its process ended with exit code {process.exitcode}"
            progress = Progress(task, "failed", reason)
        connection.close()
        process.join()
        self._end(progress)

    def _end(self, progress: Progress) -> None:
        self.open.discard(progress.task)
        if progress.state == "failed":
            self.failures[progress.task] = progress
        self.tell(progress)

    def _stop(self) -> None:
        for process, _ in self.running.values():
            process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for process, _ in self.running.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self.running.clear()


def _work(task: Task, place: Place, connection: Connection) -> None:
    """Do one task in a process of its own."""
    import torch

    # The parent decides who stops: Ctrl-C reaches all processes of a terminal at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with contextlib.suppress(ConnectionError):
        connection.send(_outcome(task, place))
