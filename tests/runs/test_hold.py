"""One process at a time runs a run.

Two processes that continue one run would each rewind what the other has written, and the metrics
would be those of both.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.runs import Run, RunError, hold
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy
from tests.apps.vision_app import run_config

TOY = Toy(clients=2)

HOLDER = """
import sys
from flwr_splitmix.runs import Run
with Run.open(sys.argv[2], home=sys.argv[1]).held():
    print("held", flush=True)
    sys.stdin.read()
"""

RUNNER = """
import sys
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy
toy = Toy(clients=2)
for _ in range(2):
    run = Run.open(sys.argv[2], home=sys.argv[1])
    try:
        PSL(toy.upper(), device="cpu", steps_per_round=1, run=run).fit(toy.make_clients(), 2)
        print("done", flush=True)
    except RunError as error:
        print(error, flush=True)
        sys.stdin.readline()
"""
"""Trains; if it cannot, it says why, and tries once more after a line of input."""


def process(script: str, run: Run, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(home), run.id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def held_elsewhere(run: Run, home: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the run."""
    with process(HOLDER, run, home) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


def fit(run: Run, rounds: int = 1) -> None:
    PSL(TOY.upper(), device="cpu", steps_per_round=1, run=run).fit(TOY.make_clients(), rounds)


def test_the_second_process_is_told_who_runs_the_run(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with held_elsewhere(run, tmp_path) as other:
        sentence = (
            rf"run {run.id} is in progress: process {other.pid} on {socket.gethostname()} has it "
            r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
        )
        with pytest.raises(RunError, match=sentence):
            fit(run)
        with pytest.raises(RunError, match=sentence):
            run.check_free()
    assert run.rows == []


def test_a_run_in_progress_is_not_resumed(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with held_elsewhere(run, tmp_path), pytest.raises(RunError, match="is in progress: process"):
        VisionConfig.of_run(run_config(resume="latest", run_dir=str(tmp_path)))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_a_process_lets_go_of_its_run(tmp_path: Path, end: signal.Signals) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with held_elsewhere(run, tmp_path) as other:
        other.send_signal(end)
        other.wait(60)
        fit(run)
    assert [row["round"] for row in run.rows] == [1]
    run.check_free()


def test_while_a_run_runs_no_other_process_runs_it(tmp_path: Path) -> None:
    """Both ways round: the one in the background is this process."""
    run = Run.create({}, name="x", home=tmp_path)
    with ExitStack() as holding:
        holding.enter_context(run.held())
        fit(run)  # the holder itself may
        with process(RUNNER, run, tmp_path) as other:
            assert other.stdout is not None
            line = other.stdout.readline()
            assert re.match(rf"run {run.id} is in progress: process {os.getpid()} on", line)
            holding.close()
            output, errors = other.communicate("\n", timeout=300)
            assert output == "done\n", errors
    assert [row["round"] for row in Run.open(run.id, home=tmp_path).rows] == [1, 2]


def test_two_runs_of_one_process_are_two(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    again = Run.open(run.id, home=tmp_path)
    refused = pytest.raises(RunError, match=f"process {os.getpid()} on")
    with run.held(), run.held(), refused, again.held():
        raise AssertionError
    with again.held():
        pass


def test_a_run_that_fails_is_free(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with pytest.raises(ZeroDivisionError), run.held():
        _ = 1 / 0
    run.check_free()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": "x"}', json.dumps({"pid": 1})])
def test_a_file_that_does_not_say_who_is_no_obstacle(tmp_path: Path, content: str) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with run.held():
        (run.path / "lock").write_text(content)
        with pytest.raises(RunError, match="is in progress: another process has it"):
            Run.open(run.id, home=tmp_path).check_free()


def test_a_lock_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError of a full disk names no file."""
    run = Run.create({}, name="x", home=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(hold, "write_all", _full)
        message = f"{run.id} cannot be written to {run.path}: No space left on device; it must be"
        with pytest.raises(RunError, match=message), run.held():
            raise AssertionError
    with run.held():
        pass
    (run.path / "lock").unlink()
    (run.path / "lock").mkdir()
    with pytest.raises(RunError, match=f"{run.path}: Is a directory; it must be"):
        run.check_free()


def _full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
