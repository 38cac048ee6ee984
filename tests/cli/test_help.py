"""The help of the commands: every argument and every option says what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

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
    page = " ".join(shown.output.split())
    for parameter in command.params:
        first = str(getattr(parameter, "help", "")).split(maxsplit=1)[0]
        assert first in page


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_lines_of_a_help_text_are_full_at_any_width(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's line ends would leave a word or two on every second line of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*path, "--help"]).output
    described = shown.partition("Usage: ")[2].partition("╭")[0]
    for paragraph in re.split(r"\n\s*\n", described)[1:]:
        for line, after in pairwise(paragraph.strip().splitlines()):
            assert len(f"{line.strip()} {after.split()[0]}") > 78, line


def test_no_help_text_has_marks_of_its_own() -> None:
    """Help texts are read as Markdown, in which 2**48 would lose its stars."""
    for path in COMMANDS:
        command: click.Command = ROOT
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        texts = [command.help or "", *(str(getattr(p, "help", "")) for p in command.params)]
        assert not [text for text in texts if re.search(r"\*\*|\b_\w+_\b|<\w|^\s*[#>*-] ", text)]
