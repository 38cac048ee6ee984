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
    cells = [line.split() for line in lines if line.startswith("20")]
    assert cells == [
        [finished.id, "cutmixsl", "vit_tiny", "10", "28/28", "78.0", "%", "finished"],
        [unfinished.id, "psl", "vit_tiny", "10", "3/28", "53.0", "%", "unfinished"],
    ]


def test_no_runs_is_no_error(splitmix: Splitmix) -> None:
    result = splitmix("runs")
    assert result.exit_code == 0
    assert "no runs" in result.stdout


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
