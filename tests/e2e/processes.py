"""Keeping an eye on the processes that a test starts, so that none outlives it."""

from __future__ import annotations

import contextlib
import threading

import psutil


class Watch:
    """Remembers every descendant of the processes it is told of, however short-lived.

    A process whose parent has ended is a child of someone else; only who saw it before knows it.
    """

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()
        self._roots: list[psutil.Process] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def add(self, pid: int) -> psutil.Process:
        """Watch a process and all that it starts."""
        root = psutil.Process(pid)
        with self._lock:
            self._roots.append(root)
            self._seen.add(root)
        return root

    def _look_on(self) -> None:
        while not self._ended.wait(0.3):
            self.look()

    def look(self) -> None:
        """Remember the descendants that there are now."""
        with self._lock:
            for root in self._roots:
                with contextlib.suppress(psutil.Error):
                    self._seen.update(root.children(recursive=True))

    def left(self) -> list[str]:
        """Return the command lines of the watched processes that still run."""
        self.look()
        with self._lock:
            return [described for process in self._seen if (described := describe(process))]

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def kill_left(self) -> None:
        """Kill what still runs, by its process id."""
        self.look()
        with self._lock:
            end_processes(self._seen)


def describe(process: psutil.Process) -> str:
    """Return a running process's id and command line, "" if it has ended."""
    try:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return ""


def command(process: psutil.Process) -> str:
    """Return a process's command line, "" if it has ended."""
    return describe(process).partition(": ")[2]


def descendants(root: psutil.Process, word: str) -> list[psutil.Process]:
    """Return the processes below `root` with a word in their command line, by process id."""
    try:
        below = root.children(recursive=True)
    except psutil.Error:
        return []
    return sorted((p for p in below if word in command(p)), key=lambda p: int(p.pid))


def end_processes(processes: set[psutil.Process] | list[psutil.Process]) -> None:
    """Kill processes by their id and wait until they are gone."""
    running = [process for process in processes if describe(process)]
    for process in running:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(running, timeout=10)
