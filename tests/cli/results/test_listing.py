"""`splitmix runs` and what all commands share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import typer
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import _ErrorMessageGroup
from flwr_splitmix.runs import Run
from flwr_splitmix.storage import StorageError

Splitmix = Callable[..., Result]


def test_every_run_is_one_line_oldest_first(
    splitmix: Splitmix, finished: Run, unfinished: Run
) -> None:
    lines = splitmix("runs").stdout.splitlines()
    cells = [line.split(maxsplit=3) for line in lines if line.startswith("20")]
    assert cells == [
        [finished.id, "finished", "28/28", "78.0 % global test set"],
        [unfinished.id, "stopped", "3/28", "53.0 % global test set"],
    ]


def test_what_differs_stands_below_each_run_within_80_columns(
    splitmix: Splitmix, home: Path
) -> None:
    shared = {"model": "vit_tiny_patch16_224", "lr": 0.001, "num-hosts": 1}
    differing = [
        {"strategy": "ShuffledCutMixSFL", "k": 2, "alpha": 6.0, "seed": 0, "label": "a long one"},
        {"strategy": "ShuffledCutMixSFL", "k": 10, "alpha": 6.0, "seed": 1, "num-hosts": 4},
    ]
    for changes in differing:
        run = Run.create({**shared, **changes}, name=str(changes["strategy"]), home=home)
        run.append_round({"round": 1, "accuracy": 0.5, "accuracy_kind": "benchmark"})
    shown = splitmix("runs").stdout
    assert "    a long one: k 2, seed 0\n" in shown
    assert "    k 10, seed 1\n" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "alpha" not in shown
    assert splitmix("runs", "--label", "a long one").stdout.count("benchmark") == 1
    assert "no run has the label 'none'" in splitmix("runs", "--label", "none").stdout


def test_however_much_differs_a_run_has_three_lines(splitmix: Splitmix, home: Path) -> None:
    for seed in range(2):
        Run.create({f"key-{n}": seed for n in range(100)}, name="x", home=home)
    lines = splitmix("runs").stdout.splitlines()
    assert len(lines) == 1 + 2 * 3
    assert max(map(len, lines)) <= 80
    assert lines[3].endswith("...")


def test_no_runs_is_no_error(splitmix: Splitmix) -> None:
    result = splitmix("runs")
    assert result.exit_code == 0
    assert "no runs" in result.stdout


def test_a_folder_without_runs_is_named(splitmix: Splitmix, tmp_path: Path) -> None:
    home = tmp_path / "home"
    nowhere = splitmix("runs", "--run-dir", str(home))
    assert nowhere.exit_code == 0
    assert nowhere.stdout == f"there are no runs yet in {home}/runs: there is no folder {home}\n"
    empty = splitmix("runs", "--run-dir", str(tmp_path), "--label", "x")
    assert empty.stdout == f"there are no runs yet in {tmp_path}/runs\n"


def test_a_home_of_damaged_runs_is_not_an_empty_one(
    splitmix: Splitmix, finished: Run, home: Path
) -> None:
    (finished.path / "config.json").write_text("{", encoding="utf-8")
    result = splitmix("runs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"the only run in {home / 'runs'} cannot be read" in result.stderr


def test_one_damaged_run_does_not_hide_the_others(
    splitmix: Splitmix, finished: Run, unfinished: Run
) -> None:
    (unfinished.path / "metrics.parquet").write_bytes(b"not parquet")
    result = splitmix("runs")
    assert finished.id in result.stdout
    assert "unreadable" in result.stdout
    assert str(unfinished.path / "metrics.parquet") in result.stderr


def test_a_home_that_is_a_file_is_one_clear_error(splitmix: Splitmix, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = splitmix("runs", "--run-dir", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_a_storage_error_is_one_clear_error_and_a_defect_is_not() -> None:
    app = typer.Typer(cls=_ErrorMessageGroup)

    @app.command()
    def unreadable() -> None:
        raise StorageError("cannot read the file")

    @app.command()
    def defect() -> None:
        raise RuntimeError("a defect")

    result = CliRunner().invoke(app, ["unreadable"])
    assert (result.exit_code, result.stderr) == (1, "cannot read the file\n")
    assert isinstance(CliRunner().invoke(app, ["defect"]).exception, RuntimeError)


def test_version(splitmix: Splitmix) -> None:
    assert splitmix("--version").stdout == f"splitmix {version('flwr-splitmix')}\n"


def test_looking_at_runs_does_not_load_torch(finished: Run, home: Path) -> None:
    script = (
        "import sys\n"
        "from flwr_splitmix.cli import app\n"
        f"app(['show', '--run-dir', {str(home)!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_the_name_of_the_folder_cannot_command_the_terminal(
    splitmix: Splitmix, tmp_path: Path
) -> None:
    output = splitmix("runs", "--run-dir", str(tmp_path / "\u202ehome")).stdout
    assert output.endswith(r"/\u202ehome" + "\n")
