"""`splitmix check` in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app


def check(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["check", str(folder), *options])
