"""`splitmix run`: what it says when the run has ended, was stopped, or is out of sight."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from flwr_splitmix.cli.run import ending
from flwr_splitmix.cli.run.ending import resuming_keys
from flwr_splitmix.cli.run.following import RunFollower
from flwr_splitmix.flwr_command import Flwr
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run
from tests.cli.run_command import run, the_error
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("no_flower")


@pytest.mark.parametrize("begun", ["here", "before"])
def test_a_run_that_ends_while_it_is_stopped_has_finished(
    begun: str, monkeypatch: pytest.MonkeyPatch, finished: Run, home: Path
) -> None:
    """Called stopped, it would seem that it could be resumed, which is then refused."""
    words = b"round 28/28 | loss 0.1" if begun == "here" else b"nothing yet"

    def follow(self: Flwr, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["echo", words], stdout=log)

    note_flower_run(finished, 7)
    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(Flwr, "follow", follow)
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:stopped", ""))
    result = run("--run-dir", str(home))
    if begun == "here":
        assert result.exit_code == 0, result.stderr
        assert "28 of 28" in result.stdout
    else:  # a resumed run that has not trained yet
        assert result.exit_code == 130
        assert "the run was stopped; resume it with" in result.stderr


@pytest.mark.parametrize("keys", [True, False])
def test_keys_that_an_own_app_lacks_are_not_named(keys: bool, finished: Run, home: Path) -> None:
    values = {"resume": "", "run-dir": str(home)} if keys else {"lr": 0.1}
    followed = RunFollower(7, home, home / "7.log", finished)
    named = f"resume='{finished.id}' run-dir='{home}'" if keys else ""
    assert resuming_keys(followed, values) == named


@pytest.mark.parametrize("rounds", [0, 1])
def test_only_a_run_with_a_finished_round_is_to_be_resumed(
    rounds: int, unfinished: Run, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """A resumed run keeps its keys, so that one that fails by a key would fail in the same way."""
    if not rounds:
        (unfinished.path / "metrics.jsonl").unlink(missing_ok=True)
        (unfinished.path / "metrics.parquet").unlink(missing_ok=True)
    note_flower_run(unfinished, 7)
    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(
        Flwr, "follow", lambda self, run_id, log: subprocess.Popen(["true"], stdout=log)
    )
    details = "LinkError: host-gpus is 1.0"
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:failed", details))
    message = the_error(run("--run-dir", str(home)))
    assert message.startswith("the run failed: LinkError: host-gpus is 1.0; ")
    assert (f"resume='{unfinished.id}'" in message) is bool(rounds)
    assert ("no round was finished, so once that is fixed, start it again" in message) is not rounds


def test_an_app_without_a_run_is_told_why_there_is_no_summary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:completed", ""))
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        ending.end_run(Flwr(None), followed, {}, interrupted=False, expected=False)
    assert f"no run of it is in {tmp_path}" in output.getvalue()


def test_a_signal_to_end_stops_the_run_and_what_writes_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writers: list[subprocess.Popen[bytes]] = []
    stopped, missed = [], []

    def follow(self: Flwr, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        writers.append(subprocess.Popen(["sleep", "20"], stdout=log))
        return writers[0]

    def stop(self: Flwr, run_id: int) -> None:
        stopped.append(run_id)
        writers[0].kill()  # a log ends with its run

    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(Flwr, "follow", follow)
    monkeypatch.setattr(Flwr, "stop", stop)
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:stopped", ""))

    def miss(number: int, frame: object) -> None:
        missed.append(number)

    def end_what_follows() -> None:
        wait_for(
            "a log that is written, and a handler of the run's own",
            lambda: writers and signal.getsignal(signal.SIGTERM) is not miss,
            60,
        )
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, miss)
    sender = threading.Thread(target=end_what_follows)
    sender.start()
    try:
        result = run("--run-dir", str(tmp_path / "home"))
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, before)
    assert (stopped, missed) == ([7], [])
    assert result.exit_code == 130
    assert "the run was stopped" in result.stderr
    assert writers[0].poll() is not None


def test_a_run_whose_folder_is_removed_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise it would continue where no command sees it."""
    home = tmp_path / "home"
    created = Run.create({}, name="mine", home=home)
    note_flower_run(created, 7)
    folder = created.path
    stopped: list[int] = []
    writers: list[subprocess.Popen[bytes]] = []

    def follow(self: Flwr, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        writers.append(subprocess.Popen(["sleep", "20"], stdout=log))
        return writers[0]

    def stop(self: Flwr, run_id: int) -> None:
        stopped.append(run_id)
        writers[0].kill()

    def remove() -> None:
        wait_for("a log", lambda: any(folder.glob("*.log")))
        shutil.rmtree(folder)

    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(Flwr, "follow", follow)
    monkeypatch.setattr(Flwr, "stop", stop)
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:stopped", ""))
    remover = threading.Thread(target=remove)
    remover.start()
    try:
        result = run("--run-dir", str(home))
    finally:
        remover.join()
        writers[0].kill()
        writers[0].wait()
    assert stopped == [7]
    assert the_error(result) == (
        f"{folder} was removed while the run was in progress; the run was stopped, and nothing of "
        "it is kept"
    )
    assert f"{folder} has been removed; stopping the run" in result.stdout


def test_a_completed_run_that_is_in_another_home_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The SuperLink may have another SPLITMIX_HOME; exit status 0 would hide it."""

    def follow(self: Flwr, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["echo", "round 1/1 | loss 0.1"], stdout=log)

    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(Flwr, "follow", follow)
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:completed", ""))
    home = tmp_path / "home"
    error = the_error(run(home=home))
    assert error.startswith(f"the run has completed, but it is not in {home}: the local SuperLink")
    assert "stop it, or give --run-dir" in error


def test_a_run_whose_log_ends_before_it_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, finished: Run, home: Path
) -> None:
    """The run may still be running, so no message advises to resume it after mending the cause."""
    note_flower_run(finished, 7)
    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(
        Flwr, "follow", lambda self, run_id, log: subprocess.Popen(["echo"], stdout=log)
    )
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("running", ""))
    monkeypatch.setattr(ending, "_SETTLE_SECONDS", 0.1)
    error = the_error(run("--run-dir", str(home)))
    assert error.startswith(
        "Flower's log ended, but run 7 may still be running: Flower reports 'running'; `flwr"
    )
    assert "`flwr stop 7` ends it" in error
    assert "resume" not in error
