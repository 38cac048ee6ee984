"""The output of a followed run, and the place of its log."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.cli.run.following import PlainDisplay, RemovedError, RunFollower, follow
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import LOG, note_flower_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    psl_run = Run.create({}, name="psl", home=tmp_path)
    note_flower_run(psl_run, 7)
    return psl_run


def test_the_log_moves_to_the_run_while_it_is_written(run: Run, tmp_path: Path) -> None:
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")
    with followed.log.open("w") as writer:
        followed.find_directory(False)
        writer.write("a line\n")
    assert followed.log == run.path / LOG
    assert followed.new_lines() == ["a line"]


def test_to_another_disk_it_moves_when_nothing_writes_it_any_more(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.path / LOG).write_text("of the part before\n")
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")

    def on_another_disk(*names: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with followed.log.open("w") as writer:
        monkeypatch.setattr("os.replace", on_another_disk)
        followed.find_directory(False)
        writer.write("a line\n")
    assert followed.run is not None
    assert followed.run.id == run.id
    assert followed.new_lines() == ["a line"]
    monkeypatch.setattr("os.rename", on_another_disk)
    followed.find_directory(True)
    assert followed.log == run.path / LOG
    assert followed.log.read_text() == "a line\n"
    assert not (tmp_path / "7.log").exists()
    (earlier,) = run.path.glob(f"{Path(LOG).stem}.*.log")
    assert earlier.read_text() == "of the part before\n"


def test_a_log_that_is_removed_is_not_taken_for_its_run(run: Run, tmp_path: Path) -> None:
    """All of the run is there, and it continues."""
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")
    assert followed.new_lines() == []
    followed.log.write_text("a line\n")
    followed.find_directory(True)
    followed.log.unlink()
    assert followed.new_lines() == []
    shutil.rmtree(run.path)
    with pytest.raises(RemovedError, match=f"{run.path} has been removed"):
        followed.new_lines()
    assert followed.new_lines() == []


def test_a_pipe_gets_the_line_of_every_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of rounds that end between two looks at the log."""
    rounds = [f"round {n}/12 | loss {n / 10}" for n in range(1, 13)]
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")
    followed.log.write_text("".join(f"INFO :      {line}\n" for line in rounds))
    with subprocess.Popen(["true"]) as writer:
        writer.wait()
        follow(followed, writer, PlainDisplay())
    assert capsys.readouterr().out.splitlines() == rounds
    assert followed.words == rounds[-1]


def test_warnings_that_say_nothing_about_the_run_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = RunFollower(7, tmp_path, tmp_path / "7.log")
    followed.log.write_text(
        "WARNING :  Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.\n"
        "WARNING :  client 3 is behind\n"
        "WARNING :  Manually terminating ClientAppActor\n"
    )
    writer = subprocess.Popen(["true"])
    writer.wait()
    follow(followed, writer, PlainDisplay())
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert lines == ["warning: client 3 is behind"]
