"""The processes of a SuperLink and of all that it starts, known by their FLWR_HOME."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any


def processes_of(home: Path) -> list[Any]:
    """Return every other process (of psutil) whose FLWR_HOME lies in a folder, and still runs.

    A process whose parent was killed is nobody's descendant any more; what tells it from all
    others is a FLWR_HOME that no other SuperLink has.
    """
    import psutil

    own = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            below = Path(process.environ().get("FLWR_HOME", "/")).is_relative_to(home)
            if below and process.pid != os.getpid() and process.status() != "zombie":
                own.append(process)
    return own


def end_processes_of(home: Path) -> None:
    """End those processes by their ids, and wait until they are gone."""
    import psutil

    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10), (signal.SIGKILL, 1)):
        if not (alive := processes_of(home)):
            break
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)  # one that is frozen would not end
                process.send_signal(number)
        psutil.wait_procs(alive, timeout=patience)
