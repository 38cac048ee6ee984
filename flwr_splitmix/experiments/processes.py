"""Processes that each do one piece of work and report on it."""

from __future__ import annotations

import multiprocessing
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Work = TypeVar("Work")
Report = TypeVar("Report")


def forking_context(modules: Sequence[str]) -> BaseContext:
    """Return the start method of processes that are forked from one that imported modules.

    They start fast, and share neither threads nor a GPU with each other or with this process.
    Ctrl-C, which reaches all processes of a terminal, is for this one alone.

    Parameters
    ----------
    modules
        Modules that the work needs. What all later processes of this one are forked from has those
        of the first call.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # it unblocks the signal when it starts
    # A started process inherits the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _begin(target: Callable[[Work, Any], None], work: Work, connection: Connection) -> None:
    """Do the work in its own process, if what asked for it still waits for reports."""
    poller = select.poll()
    poller.register(connection.fileno(), 0)  # errors alone: the other end is closed
    if not poller.poll(0):
        target(work, connection)


class Processes(Generic[Work, Report]):
    """Running processes and their work; a process that dies affects only its own work.

    Parameters
    ----------
    context
        Start method of the processes.
    target
        Called in the process with a piece of work and the connection for its reports.
    ended
        Returns whether a report is the last of its process.
    died
        Makes the report, from the work and a reason, for a process that ends without a last one.
    patience
        Seconds for all stopped processes to end.
    """

    def __init__(
        self,
        context: BaseContext,
        target: Callable[[Work, Any], None],
        *,
        ended: Callable[[Report], bool],
        died: Callable[[Work, str], Report],
        patience: float,
    ) -> None:
        self._context = context
        self._target = target
        self._ended = ended
        self._died = died
        self._patience = patience
        self._running: dict[Connection, tuple[BaseProcess, Work]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Work) -> None:
        """Start a process for a piece of work."""
        ours, theirs = self._context.Pipe(duplex=False)
        # For the type checker, only subclasses of the context have Process.
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_begin, args=(self._target, work, theirs)
        )
        try:
            process.start()
        except BaseException:  # it may begin all the same, once what it is forked from has started
            ours.close()
            theirs.close()
            raise
        theirs.close()
        self._running[ours] = (process, work)

    def wait(self) -> Iterator[Report]:
        """Wait for reports of any processes, and yield them."""
        for connection in wait(list(self._running)):
            assert isinstance(connection, Connection)
            yield self._receive(connection)

    def stop(self) -> None:
        """End all processes by SIGTERM, and those still running after `patience` by SIGKILL."""
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + self._patience
        for process, _ in self._running.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._running.clear()

    def _receive(self, connection: Connection) -> Report:
        process, work = self._running[connection]
        try:
            report: Report = connection.recv()
        except EOFError:  # it died without a last report
            process.join()
            report = self._died(work, f"its process ended with exit code {process.exitcode}")
        if self._ended(report):
            del self._running[connection]
            connection.close()
            process.join()
        return report


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, after its type unless it is a user's error."""
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, (ValueError, RuntimeError)) and text:
        return text
    return f"{type(error).__name__}: {text}"
