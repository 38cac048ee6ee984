"""`splitmix run`: what it says of a run's folder and of a resumed run before Flower starts."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.flwr_command import Flwr
from flwr_splitmix.runs import Run
from tests.apps.app_config import APPS
from tests.cli.run_command import MODULE, run, the_error

pytestmark = pytest.mark.usefixtures("no_flower")

CHECK_REPORT = MODULE._check_report
"""The check itself: the fixture replaces it."""


def test_an_interruption_while_flower_takes_the_run_says_that_it_may_run_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(self: Flwr, *arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flwr, "start", start)
    result = run("--run-dir", str(tmp_path))
    assert result.exit_code == 130
    assert "so it may run on: see `flwr ls`, and end it with `flwr stop`" in result.stderr


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no such folder here")
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
    """Neither that of --run-config nor the other is ignored without a word."""
    one, other = tmp_path / "one", tmp_path / "other"
    keys = f"run-dir='{other}'"
    assert the_error(run("-c", keys, "--run-dir", str(one))) == (
        f"--run-dir is '{one}', but --run-config has run-dir='{other}'; write one of them"
    )
    file = tmp_path / "keys.toml"
    file.write_text(keys)
    for config in (f"run-dir='{one}'", str(file)):
        assert the_error(run("-c", config, "--run-dir", str(one))) == "Flower was started"


def test_two_numbers_of_nodes_are_refused() -> None:
    """Neither that of --federation-config nor the other is ignored without a word."""
    keys = ("--federation-config", "client-resources-num-gpus=0.5 num-supernodes=2")
    assert the_error(run("--nodes", "3", *keys)) == (
        "--nodes is 3, but --federation-config has num-supernodes=2; write one of them"
    )
    assert the_error(run("--nodes", "2", *keys)) == "Flower was started"


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
    result = run("-c", f"run-dir='{key}'", "--run-dir", option)
    assert the_error(result) == "Flower was started"


def test_a_folder_of_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write everywhere
    assert "(Permission denied)" in the_error(run("--run-dir", str(tmp_path / "home")))


def test_what_cannot_be_resumed_is_said_at_once(tmp_path: Path, finished: Run, home: Path) -> None:
    none = the_error(run("-c", "resume='latest'", "--run-dir", str(tmp_path / "empty")))
    assert none == f"there are no runs in {tmp_path / 'empty' / 'runs'}"
    assert not (tmp_path / "empty").exists()
    for result in (
        run("-c", f"resume='nope' run-dir='{home}'"),
        run("-c", "resume='nope'", "--run-dir", str(home)),
        run("-c", "resume='nope'", home=home),
    ):
        assert "there is no run 'nope' in " in the_error(result)
        assert finished.id in the_error(result)
    with Run.open(finished.id, home=home).held():
        error = the_error(run("-c", f"resume='{finished.id}'", home=home))
        assert finished.id in error


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
    error = the_error(run("-c", f"resume='latest'{rounds}", home=home))
    assert error == (
        f"run {finished.id} has finished its 28 rounds: raise num-server-rounds above 28 with "
        "--run-config to continue it, or start a new run without resume"
    )


def test_a_run_of_another_app_is_named_before_anything_is_started(home: Path) -> None:
    """The remedy would otherwise be to raise the number of rounds, and lead nowhere."""
    other = Run.create({"num-server-rounds": 3, "task": "generation"}, name="texts", home=home)
    assert the_error(run("-c", "resume='latest'", home=home)) == (
        f"run {other.id} is one of a language app, and this is a vision app: resume it with the "
        "app that began it"
    )


@pytest.mark.parametrize("reason", ["more", "stopped", "ended early"])
def test_a_run_with_rounds_left_is_resumed(reason: str, finished: Run, home: Path) -> None:
    if reason == "stopped":
        (finished.path / "summary.json").unlink()
    elif reason == "ended early":  # a spent privacy budget ends a run, too
        summary = finished.summary
        finished.rewind(20)
        finished.write_summary(summary or {})
    rounds = " num-server-rounds=29" if reason == "more" else ""
    result = run("-c", f"resume='latest'{rounds}", home=home)
    note, error = result.stderr.splitlines()
    assert error == "Flower was started"
    assert note.startswith("note: the run continues with its own configuration, not with that of")
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
    """Otherwise runs and log would go elsewhere."""
    app_folder = own_app(tmp_path, "")
    result = CliRunner().invoke(app, ["run", str(app_folder), "--run-dir", str(tmp_path / "home")])
    assert the_error(result) == (
        "--run-dir sets the app's key run-dir, which mine does not have; leave the option out, or "
        "have the app read such a key"
    )


def test_a_run_with_a_number_of_virtual_nodes_is_checked_as_a_simulation() -> None:
    """What only a stream does would otherwise be a remark, and the run start and fail."""
    keys = ["wire-dtype='int8'"]
    (known,) = CHECK_REPORT(APPS / "vision", keys, 2)["problems"]
    assert known.startswith("wire-dtype is 'int8', but in a simulation tensors travel as they are")
    unknown = CHECK_REPORT(APPS / "vision", keys, None)
    assert unknown["problems"] == []
    assert any(known in remark for remark in unknown["remarks"])


def test_what_the_check_writes_meanwhile_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A hub that does not answer is asked for half a minute, and the user is told."""
    app_folder = own_app(tmp_path, "import sys; sys.stderr.write('the hub is asked again\\n')\n")
    assert CHECK_REPORT(app_folder, [], 2)["problems"] == []
    assert "the hub is asked again" in capfd.readouterr().err


def test_a_check_that_ends_without_a_report_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app_folder = own_app(tmp_path, "import os; os._exit(3)\n")
    with pytest.raises(typer.Exit):
        CHECK_REPORT(app_folder, [], 2)
    assert f"splitmix check {app_folder} failed with exit status 3" in capfd.readouterr().err


def own_app(home: Path, first: str) -> Path:
    """Make an app whose ClientApp begins with a line."""
    app_folder = home / "mine"
    assert CliRunner().invoke(app, ["new", "own", str(app_folder)]).exit_code == 0
    client = app_folder / "client_app.py"
    client.write_text(first + client.read_text(encoding="utf-8"), encoding="utf-8")
    return app_folder
