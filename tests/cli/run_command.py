"""`splitmix run` in this process, without a check and without Flower."""

from __future__ import annotations

import importlib
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from tests.apps.app_config import APPS

MODULE = importlib.import_module("flwr_splitmix.cli.run.command")
"""The package's attribute `run` is the command, not the module."""


def run(*options: str, home: Path | None = None) -> Result:
    environment = {} if home is None else {"SPLITMIX_HOME": str(home)}
    return CliRunner().invoke(app, ["run", str(APPS / "vision"), *options], env=environment)


def the_error(result: Result) -> str:
    assert result.exit_code == 1, result.exception
    (line,) = result.stderr.splitlines()
    return line
