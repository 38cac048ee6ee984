"""Processes that are interrupted while what they are forked from still starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_for

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from flwr_splitmix.experiments.processes import Processes, forking_context
from slow import work

if __name__ == "__main__":
    processes = Processes(
        forking_context(["slow_import"]), work, ended=lambda report: True, died=print, patience=5.0
    )
    try:
        processes.start(sys.argv[1])
        print("started")
    except KeyboardInterrupt:
        print("stopped")
    finally:
        processes.stop()
"""

SLOW = """
import pathlib, time

def work(folder, connection):
    (pathlib.Path(folder) / "worked").touch()
    time.sleep(60)
"""

SLOW_IMPORT = """
import pathlib, time
here = pathlib.Path(__file__)
here.with_name("importing").touch()
deadline = time.monotonic() + 10
while not here.with_name("interrupted").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
"""


def ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_interruption_during_the_first_start_is_silent_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """The server that processes are forked from is interrupted too, amid its imports."""
    for name, source in (("program", PROGRAM), ("slow", SLOW), ("slow_import", SLOW_IMPORT)):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    paths = os.pathsep.join((str(tmp_path), *filter(None, sys.path)))
    program = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for("the import", (tmp_path / "importing").exists)
        os.killpg(program.pid, signal.SIGINT)
        program.wait(timeout=60)
        (tmp_path / "interrupted").touch()
        output = program.communicate(timeout=60)
        wait_for("the end of all processes", lambda: ended(program.pid), timeout=30.0)
    finally:
        if not ended(program.pid):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert output == ("stopped\n", "")
    assert not (tmp_path / "worked").exists()
