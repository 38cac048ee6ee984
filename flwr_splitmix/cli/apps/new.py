"""`splitmix new`: writes a small app to start from."""

from __future__ import annotations

import os
import re
import shlex
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.terminal import fail

FILES = ("pyproject.toml", "server_app.py", "client_app.py")
"""The files of an app."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")  # Flower takes no longer ones


class Template(StrEnum):
    """The available templates."""

    vision = "vision"
    language = "language"
    own = "own"


def new(
    kind: Annotated[
        Template,
        typer.Argument(help="vision, language: all keys; own: your own modules and data."),
    ],
    name: Annotated[str, typer.Argument(help="Name of the app and of its new folder.")],
) -> None:
    """Write an app of a few short files to a new folder NAME."""
    folder = Path(name)
    if not _NAME.fullmatch(folder.name):
        fail(
            f"{folder.name!r:.80} is not an app's name: it must be up to 32 small letters, digits "
            "and '-', with a letter first"
        )
    if os.path.lexists(folder):
        fail(f"{folder} exists already; name another folder, or remove it")
    source = files("flwr_splitmix.templates") / kind.value
    try:
        folder.mkdir(parents=True)
        for file in FILES:
            text = (source / file).read_text(encoding="utf-8")
            if file == "pyproject.toml":
                text = renamed(text, folder.name)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{folder} cannot be written: {error.strerror}; name another folder")
    keys = "" if kind is Template.own else f" Its keys are in {folder / 'pyproject.toml'}."
    typer.echo(f"{folder} is an app.{keys} Try:\n")
    named = shlex.quote(str(folder))
    typer.echo(f"  splitmix check {named}\n  splitmix run {named} --nodes 4")


def renamed(described: str, name: str) -> str:
    """Return an app's pyproject.toml with another project's name."""
    return re.sub(r'(\bname = ")[^"]+(")', rf"\g<1>{name}\g<2>", described, count=1)
