"""`splitmix run`: what it says of a run's folder and of a resumed run before Flower starts."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.cli.flower import Flwr, FlwrError
from flwr_splitmix.cli.following import Followed
from flwr_splitmix.cli.run_ending import resuming_keys
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run
from tests.apps.app_config import APPS
from tests.waiting import wait_for

MODULE = importlib.import_module("flwr_splitmix.cli.run")
"""The package's attribute `run` is the command, not the module."""

CHECK = MODULE._check


@pytest.fixture(autouse=True)
def no_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(self: Flwr, *arguments: Any) -> int:
        raise FlwrError("Flower was started")

    monkeypatch.setattr(Flwr, "start", start)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setattr(MODULE, "check_environment", lambda connection: "")
    monkeypatch.setattr(MODULE, "_check", lambda *arguments: {"problems": [], "remarks": []})


def run(*options: str, home: Path | None = None) -> Result:
    environment = {} if home is None else {"SPLITMIX_HOME": str(home)}
    return CliRunner().invoke(app, ["run", str(APPS / "vision"), *options], env=environment)


def the_error(result: Result) -> str:
    assert result.exit_code == 1, result.exception
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no such folder here")
def test_an_interruption_while_flower_takes_the_run_says_that_it_may_run_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(self: Flwr, *arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flwr, "start", start)
    result = run("--run-dir", str(tmp_path))
    assert result.exit_code == 130
    assert "so it may run on: see `flwr ls`, and end it with `flwr stop`" in result.stderr


def test_a_folder_that_cannot_be_made_is_named_by_its_key(tmp_path: Path) -> None:
    typed = the_error(run("--run-config", "run-dir='/proc/x'"))
    assert typed.startswith("run-dir is '/proc/x', where nothing can be written (")
    assert typed.endswith("; choose a writable folder")
    assert the_error(run("--run-dir", "/proc/x")).startswith("--run-dir is '/proc/x', ")
    assert the_error(run(home=Path("/proc/x"))).startswith("$SPLITMIX_HOME is '/proc/x', ")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert f"--run-dir is '{file}', where nothing" in the_error(run("--run-dir", str(file)))


def test_two_run_directories_are_refused(tmp_path: Path) -> None:
    """The one of --run-config was ignored without a word."""
    one, other = tmp_path / "one", tmp_path / "other"
    keys = f"run-dir='{other}'"
    assert the_error(run("-c", keys, "--run-dir", str(one))) == (
        f"--run-dir is '{one}', but --run-config has run-dir='{other}'; write one of them"
    )
    file = tmp_path / "keys.toml"
    file.write_text(keys)
    for config in (f"run-dir='{one}'", str(file)):
        assert the_error(run("-c", config, "--run-dir", str(one))) == "Flower was started"


@pytest.mark.parametrize(
    ("option", "key"),
    [("new", "new"), ("{0}/new/", "{0}/new/"), ("{0}/new", "~/new"), ("~/new", "{0}/new")],
)
def test_one_run_directory_written_in_two_ways_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, key: str
) -> None:
    """Such as "~/new", which the shell expands in an option and not in a pair."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    option, key = option.format(tmp_path), key.format(tmp_path)
    done = run("-c", f"run-dir='{key}'", "--run-dir", option)
    assert the_error(done) == "Flower was started"


def test_a_folder_of_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write everywhere
    assert "(Permission denied)" in the_error(run("--run-dir", str(tmp_path / "home")))


def test_what_cannot_be_resumed_is_said_at_once(tmp_path: Path, finished: Run, home: Path) -> None:
    none = the_error(run("-c", "resume='latest'", "--run-dir", str(tmp_path / "empty")))
    assert none == f"there are no runs in {tmp_path / 'empty' / 'runs'}"
    assert not (tmp_path / "empty").exists()
    for said in (
        run("-c", f"resume='nope' run-dir='{home}'"),
        run("-c", "resume='nope'", "--run-dir", str(home)),
        run("-c", "resume='nope'", home=home),
    ):
        assert "there is no run 'nope' in " in the_error(said)
        assert finished.id in the_error(said)
    with Run.open(finished.id, home=home).held():
        held = the_error(run("-c", f"resume='{finished.id}'", home=home))
        assert finished.id in held


def test_a_run_on_another_machine_is_resumed_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        '[superlink.far]\naddress = "flower.example:9093"\n', encoding="utf-8"
    )
    result = run("far", "-c", "resume='nope'", "--run-dir", str(tmp_path / "home"))
    assert the_error(result) == "Flower was started"


@pytest.mark.parametrize("rounds", ["", " num-server-rounds=28", " num-server-rounds=5"])
def test_a_run_without_a_round_left_is_not_started(rounds: str, finished: Run, home: Path) -> None:
    said = the_error(run("-c", f"resume='latest'{rounds}", home=home))
    assert said == (
        f"run {finished.id} has finished its 28 rounds: raise num-server-rounds above 28 with "
        "--run-config to go on with it, or start a new run without resume"
    )


@pytest.mark.parametrize("left", ["more", "stopped", "ended early"])
def test_a_run_with_rounds_left_is_resumed(left: str, finished: Run, home: Path) -> None:
    if left == "stopped":
        (finished.path / "summary.json").unlink()
    elif left == "ended early":  # a spent privacy budget ends a run, too
        summary = finished.summary
        finished.rewind(20)
        finished.write_summary(summary or {})
    rounds = " num-server-rounds=29" if left == "more" else ""
    result = run("-c", f"resume='latest'{rounds}", home=home)
    note, error = result.stderr.splitlines()
    assert error == "Flower was started"
    assert note.startswith("note: the run goes on with its own configuration, not with that of pyp")
    assert f"strategy is {finished.config['strategy']!r} (there 'CutMixSFL')" in note
    assert "resume" not in note


def test_a_resumed_run_that_would_wait_for_a_cluster_that_is_gone_is_noted(
    finished: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    result = run("-c", "resume='latest' num-server-rounds=29", home=home)
    assert "ray_current_cluster names a Ray cluster at 127.0.0.1:1, where" in result.stderr


def test_a_run_directory_that_an_app_does_not_take_is_refused(tmp_path: Path) -> None:
    """It was ignored: runs and log went elsewhere."""
    made = own_app(tmp_path, "")
    said = CliRunner().invoke(app, ["run", str(made), "--run-dir", str(tmp_path / "home")])
    assert the_error(said) == (
        "--run-dir sets the app's key run-dir, which mine does not have; leave the option out, or "
        "have the app read such a key"
    )


@pytest.mark.parametrize("begun", ["here", "before"])
def test_a_run_that_ends_while_it_is_stopped_has_finished(
    begun: str, monkeypatch: pytest.MonkeyPatch, finished: Run, home: Path
) -> None:
    """It was called stopped, and to be resumed, which is then refused."""
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
    followed = Followed(7, home, home / "7.log", finished)
    named = f"resume='{finished.id}' run-dir='{home}'" if keys else ""
    assert resuming_keys(followed, values) == named


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
    before = signal.signal(signal.SIGTERM, lambda number, frame: missed.append(number))
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        result = run("--run-dir", str(tmp_path / "home"))
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    assert (stopped, missed) == ([7], [])
    assert result.exit_code == 130
    assert "the run was stopped" in result.stderr
    assert writers[0].poll() is not None


@pytest.mark.parametrize("read", [0, 1])
def test_a_run_that_nobody_watches_is_stopped(read: int, tmp_path: Path) -> None:
    """As behind `| head -1`, which ended the command alone: the run went on unwatched."""
    done = subprocess.Popen(
        [sys.executable, "-c", UNWATCHED, str(APPS / "vision"), str(tmp_path / "home")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=APPS.parent,
    )  # fmt: skip
    assert done.stdout is not None
    assert done.stderr is not None
    for _ in range(read):
        assert done.stdout.readline() == "run 7 of Flower has started\n"
    done.stdout.close()
    said = done.stderr.read()
    done.stderr.close()
    assert (done.wait(), said) == (
        130,
        f"stop 7\nthe run was stopped (Flower's log: {tmp_path}/home/flower-logs/7.log)\n",
    )


UNWATCHED = """
import importlib, subprocess, sys
from flwr_splitmix.cli import app
from flwr_splitmix.cli.flower import Flwr

module = importlib.import_module("flwr_splitmix.cli.run")
module.check_environment = lambda connection: ""
module._check = lambda *arguments: {"problems": [], "remarks": []}
writers = []


def follow(self, run_id, log):
    rounds = 'i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo "round $i/200 | x"; sleep 0.1; done'
    writers.append(subprocess.Popen(["sh", "-c", rounds], stdout=log))
    return writers[0]


def stop(self, run_id):
    print("stop", run_id, file=sys.stderr, flush=True)
    writers[0].kill()


Flwr.start = lambda self, *arguments: 7
Flwr.follow, Flwr.stop = follow, stop
Flwr.status = lambda self, run_id: ("finished:stopped", "")
app(["run", sys.argv[1], "--run-dir", sys.argv[2]])
"""


def test_a_run_whose_folder_is_removed_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was a traceback, and the run went on where no command saw it."""
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
    """It ended silently with exit status 0; the SuperLink had another SPLITMIX_HOME."""

    def follow(self: Flwr, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["echo", "round 1/1 | loss 0.1"], stdout=log)

    monkeypatch.setattr(Flwr, "start", lambda self, *arguments: 7)
    monkeypatch.setattr(Flwr, "follow", follow)
    monkeypatch.setattr(Flwr, "status", lambda self, run_id: ("finished:completed", ""))
    home = tmp_path / "home"
    said = the_error(run(home=home))
    assert said.startswith(f"the run has completed, but it is not in {home}: the local SuperLink")
    assert "stop it, or give --run-dir" in said


def test_what_the_check_writes_meanwhile_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A hub that does not answer is asked for half a minute, which nothing told."""
    made = own_app(tmp_path, "import sys; sys.stderr.write('the hub is asked again\\n')\n")
    assert CHECK(made, [], 2)["problems"] == []
    assert "the hub is asked again" in capfd.readouterr().err


def test_a_check_that_ends_without_a_report_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = own_app(tmp_path, "import os; os._exit(3)\n")
    with pytest.raises(typer.Exit):
        CHECK(made, [], 2)
    assert f"splitmix check {made} failed with exit status 3" in capfd.readouterr().err


def own_app(home: Path, first: str) -> Path:
    """Make an app whose ClientApp begins with a line."""
    made = home / "mine"
    assert CliRunner().invoke(app, ["new", "own", str(made)]).exit_code == 0
    client = made / "client_app.py"
    client.write_text(first + client.read_text(encoding="utf-8"), encoding="utf-8")
    return made
