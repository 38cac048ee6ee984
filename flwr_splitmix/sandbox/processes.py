"""The processes of a SuperLink and of all that it starts, identified by their FLWR_HOME."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any


def processes_of(home: Path) -> list[Any]:
    """Return all other running processes (psutil's) whose FLWR_HOME is in a folder.

    A process whose parent was killed is no longer a descendant of the SuperLink, but still has a
    FLWR_HOME that no other SuperLink uses.
    """
    import psutil

    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            below = Path(process.environ().get("FLWR_HOME", "/")).is_relative_to(home)
            if below and process.pid != os.getpid() and process.status() != "zombie":
                processes.append(process)
    return processes


def end_processes_of(home: Path) -> None:
    """End the processes whose FLWR_HOME is in a folder, and wait until they are gone."""
    import psutil

    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10), (signal.SIGKILL, 1)):
        if not (alive := processes_of(home)):
            break
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)  # a stopped process would not end
                process.send_signal(number)
        psutil.wait_procs(alive, timeout=patience)
