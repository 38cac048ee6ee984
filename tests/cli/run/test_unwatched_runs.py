"""`splitmix run` without a reader: it stops its run, and reports it where it can."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.apps.app_config import APPS
from tests.waiting import wait_for

FULL = Path("/dev/full")
full_disk = pytest.mark.skipif(not FULL.exists(), reason="there is no such device here")

PROGRAM = """
import importlib, subprocess, sys
from flwr_splitmix.cli import app
from flwr_splitmix.cli.run import following
from flwr_splitmix.flwr_command import Flwr, FlwrError

module = importlib.import_module("flwr_splitmix.cli.run.command")
module.check_environment = lambda connection: ""
module._check_report = lambda *arguments: {"problems": [], "remarks": []}
fault = sys.argv[3]
writers = []


def follow(self, run_id, log):
    rounds = 'i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo "round $i/100 | x"; sleep 0.1; done'
    writers.append(subprocess.Popen(["sh", "-c", rounds], stdout=log))
    return writers[0]


def stop(self, run_id):
    print("stop", run_id, file=open(sys.argv[2] + "/stops", "a"))
    writers[0].kill()
    if fault == "stop":
        raise FlwrError("flwr stop: no answer")


def broken(*arguments):
    raise ZeroDivisionError if fault == "bug" else OSError(28, "No space left on device", "x.log")


Flwr.start = lambda self, *arguments: 7
Flwr.follow, Flwr.stop = follow, stop
Flwr.status = lambda self, run_id: ("finished:stopped", "")
if fault in ("bug", "disk"):
    following.RunFollower.find_directory = broken
app(["run", sys.argv[1], "--run-dir", sys.argv[2]])
"""


def take_hangups() -> None:
    """Undo what a child inherits from tests that are themselves behind nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def take_terminal() -> None:
    take_hangups()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def started(
    home: Path,
    output: int | None,
    fault: str = "",
    first: Callable[[], None] = take_hangups,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start the command, with a run that writes its log for 10 s.

    `fault` is "stop" if the run cannot be stopped, "disk" or "bug" if following it raises OSError
    or another exception. `first` is called in the new process.
    """
    command: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(APPS / "vision"), str(home), fault],
        **{"stdout": output, "stderr": subprocess.PIPE, **options}, text=True, cwd=APPS.parent,
        preexec_fn=first,
    )  # fmt: skip
    return command


def ended(command: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the command's exit status and standard error."""
    assert command.stderr is not None
    with command.stderr as stderr:
        errors = stderr.read()
    return command.wait(), errors


def stops(home: Path) -> int:
    """Return how often the run was told to stop."""
    return len((home / "stops").read_text().splitlines())


def stopped(home: Path) -> str:
    return f"the run was stopped (Flower's log: {home}/flower-logs/7.log)\n"


@pytest.mark.parametrize("read", [0, 1])
def test_behind_a_closed_pipe_it_is_stopped(read: int, tmp_path: Path) -> None:
    """As behind `| head -1`; if the command alone ended, the run would continue unwatched."""
    command = started(tmp_path, subprocess.PIPE)
    assert command.stdout is not None
    for _ in range(read):
        assert command.stdout.readline() == "run 7 of Flower has started\n"
    command.stdout.close()
    assert ended(command) == (130, stopped(tmp_path))
    assert stops(tmp_path) == 1


def test_without_standard_output_it_is_followed(tmp_path: Path) -> None:
    """An error after the run has begun would leave it unwatched."""

    def close_output() -> None:
        take_hangups()
        os.close(1)

    command = started(tmp_path, None, first=close_output)
    log = tmp_path / "flower-logs" / "7.log"
    wait_for("rounds in the log", lambda: log.exists() and b"round 3/100" in log.read_bytes())
    command.terminate()
    assert ended(command) == (130, stopped(tmp_path))
    assert stops(tmp_path) == 1


@full_disk
@pytest.mark.parametrize("fault", ["", "stop"])
def test_on_a_full_disk_it_is_stopped_and_says_why(fault: str, tmp_path: Path) -> None:
    """An error would leave the run unwatched, and its log would be lost."""
    with FULL.open("w") as full:
        command = started(tmp_path, full.fileno(), fault)
    failed = "flwr stop: no answer\n" if fault else ""
    assert ended(command) == (
        130,
        "standard output cannot be written: No space left on device; stopping the run\n"
        f"{failed}{stopped(tmp_path)}",
    )
    assert stops(tmp_path) == 1


@full_disk
def test_with_both_outputs_on_a_full_disk_it_is_stopped(tmp_path: Path) -> None:
    with FULL.open("w") as full:
        command = started(tmp_path, full.fileno(), stderr=full)
    assert command.wait() != 0
    assert stops(tmp_path) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_when_its_terminal_is_gone_it_is_stopped(times: int, tmp_path: Path) -> None:
    """If the command died alone, the run would continue. A shell repeats the signal to its jobs."""
    command = started(tmp_path, subprocess.PIPE)
    assert command.stdout is not None
    with command.stdout as stdout:
        assert stdout.readline() == "run 7 of Flower has started\n"
        for _ in range(times):
            command.send_signal(signal.SIGHUP)
            time.sleep(0.1)  # two at once are one
        status, errors = ended(command)
    # The second one may come when all is done, and end what ends anyway.
    assert status in {1: (130,), 2: (130, -signal.SIGHUP)}[times]
    assert errors == stopped(tmp_path)
    assert stops(tmp_path) == 1


def test_in_a_terminal_that_is_closed_it_is_stopped(tmp_path: Path) -> None:
    """There both the signal comes, and writing fails, in either order."""
    ours, theirs = pty.openpty()
    command = started(tmp_path, theirs, first=take_terminal, stdin=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    while b"has started" not in shown:
        shown += os.read(ours, 1000)
    os.close(ours)
    status, errors = ended(command)
    assert status == 130
    assert errors.endswith(stopped(tmp_path))
    assert "Traceback" not in errors
    assert stops(tmp_path) == 1


def test_behind_nohup_it_goes_on_when_its_terminal_is_gone(tmp_path: Path) -> None:
    command = started(tmp_path, subprocess.PIPE, first=ignore_hangups)
    assert command.stdout is not None
    with command.stdout as stdout:
        assert stdout.readline() == "run 7 of Flower has started\n"
        command.send_signal(signal.SIGHUP)
        while "round 9/100" not in stdout.readline():
            assert command.poll() is None
        command.send_signal(signal.SIGTERM)
        assert ended(command) == (130, stopped(tmp_path))


@pytest.mark.parametrize(
    ("fault", "reason"), [("disk", "[Errno 28] No space left on device: 'x.log'; "), ("bug", "")]
)
def test_an_error_of_following_it_says_that_it_may_go_on(
    fault: str, reason: str, tmp_path: Path
) -> None:
    with open(os.devnull, "w") as nothing:
        status, errors = ended(started(tmp_path, nothing.fileno(), fault))
    assert status == 1
    first, *more = errors.splitlines()
    assert first == f"{reason}run 7 may still be running; `flwr stop 7` ends it"
    assert ("ZeroDivisionError" in errors) == bool(more) == (fault == "bug")
