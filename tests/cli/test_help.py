"""The help of the commands: every argument and every option says what it is."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
import typer.main
from typer.testing import CliRunner

from flwr_splitmix.cli import app


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(each, (*path, name))
    else:
        yield path


ROOT = typer.main.get_command(app)
COMMANDS = sorted(_commands(ROOT))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_argument_and_option_is_explained(path: tuple[str, ...]) -> None:
    command: click.Command = ROOT
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    for parameter in command.params:
        explained = getattr(parameter, "help", "")
        assert explained, f"{' '.join(path)}: {parameter.name}"
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=200)
    assert shown.exit_code == 0
    said = " ".join(shown.output.split())
    for parameter in command.params:
        first = str(getattr(parameter, "help", "")).split(maxsplit=1)[0]
        assert first in said
