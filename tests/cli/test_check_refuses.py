"""`splitmix check` refuses what no run could begin with, whatever its file holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from tests.apps.app_config import APPS


def check(*typed: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, typed)])


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ("tool = 3", "has tool = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr = 3", "has tool.flwr = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr.app.components = 3",
         "has tool.flwr.app.components = 3; it must be a table, [tool.flwr.app.components]"),
        ("tool.flwr.app.config = 3",
         "has tool.flwr.app.config = 3; it must be a table, [tool.flwr.app.config]"),
        ('project = 3\n[tool.flwr.app.components]\nserverapp = "a:b"\nclientapp = "a:b"',
         "has project = 3; it must be a table, [project]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "run"])
def test_what_must_be_a_table_is_one(
    command: str, described: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(described, encoding="utf-8")
    done = CliRunner().invoke(app, [command, str(tmp_path)])
    assert (done.exit_code, done.stderr) == (1, f"{tmp_path / 'pyproject.toml'} {said}\n")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("batch-size=1" + 40 * "0", "; input should be less than 2147483648"),
        ("model='resnet18' batch-size=1",
         "batch-size is 1, but batch normalisation in the upper segment needs more than one value"),
        ("resume='../x'", "resume is '../x', but '../x' is not a run's id: an id is a name"),
        ("resume='latest' run-dir='/nonexistent'",
         "resume is 'latest', but there are no runs in /nonexistent/runs"),
        ("tracker='foo'", "tracker is 'foo'; 'foo' is no tracker; allowed are csv, tensorboard"),
        ("resume='latest' run-dir='~nobody-here/x'",
         "resume is 'latest', but cannot find the folder '~nobody-here/x'"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_found(keys: str, said: str) -> None:
    done = check(APPS / "vision", "--no-cuts", "--run-config", keys)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.exception
    assert said in done.stderr


def test_smashed_data_larger_than_the_memory_are_remarked() -> None:
    done = check(APPS / "vision", "--no-cuts", "--run-config", "batch-size=100000000")
    assert "alone take 2,288.8 GiB at the server, and this machine has" in done.stdout
    assert "a smaller batch-size or image-size needs less" in done.stdout
    done = check(APPS / "vision", "--no-cuts")
    assert "GiB" not in done.stdout


@pytest.mark.parametrize(
    ("option", "typed"),
    [("--uplink", "fast"), ("--uplink", "nanmbit"), ("--uplink", "-1mbit"), ("--rtt", "nanms")],
)
@pytest.mark.parametrize("cuts", ["--cuts", "--no-cuts"])
def test_what_is_no_speed_is_refused(cuts: str, option: str, typed: str) -> None:
    done = check(APPS / "vision", cuts, option, typed)
    assert done.exit_code == 2
    assert option in done.output
