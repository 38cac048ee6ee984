"""`splitmix runs`: all runs with their states, and the keys in which they differ."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.terminal import RunDirectory, print_sentence, text
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.places import run_paths, runs_directory
from flwr_splitmix.runs.reports.differences import BOOKKEEPING, PLACE, differing, in_words
from flwr_splitmix.runs.reports.facts import facts_of, rounds_of
from flwr_splitmix.runs.reports.words import NOTHING, percent

WIDTH = 80
_LONGEST_ID = 40


def runs(
    label: Annotated[
        str | None,
        typer.Option(help="Only runs with this label.", show_default=False),
    ] = None,
    run_dir: RunDirectory = None,
) -> None:
    """List the runs, oldest first, with the keys in which they differ."""
    readable = Run.all(run_dir)
    if not readable:
        print_sentence(_nothing_in(runs_directory(run_dir)))
        return
    listed = [run for run in readable if label in (None, run.label)]
    if not listed:
        typer.echo(f"no run has the label {label!r}")
        return
    keys = differing([run.config for run in listed], {*BOOKKEEPING, *PLACE})
    width = min(max(len(run.id) for run in listed), _LONGEST_ID)
    damages = []
    typer.echo(_line(width, "id", "state", "rounds", "top-1"))
    for run in listed:
        try:
            typer.echo(_line(width, run.id, *_cells(run)))
        except RunError as error:
            typer.echo(_line(width, run.id, "unreadable", NOTHING, NOTHING))
            damages.append(str(error))
        for line in _differences(run, keys):
            typer.echo(line)
    for damage in damages:
        print_sentence(damage, err=True)


def _nothing_in(folder: Path) -> str:
    """Return why there is nothing to list.

    Raises
    ------
    RunError
        If there are runs, none of which can be read.
    """
    if paths := run_paths(folder):
        raise RunError(
            f"none of the {len(paths)} runs in {folder} can be read"
            if len(paths) > 1
            else f"the only run in {folder} cannot be read"
        )
    home = folder.parent
    missing = "" if home.exists() else f": there is no folder {home}"
    return f"there are no runs yet in {folder}{missing}"


def _line(width: int, run_id: str, state: str, rounds: str, accuracy: str) -> str:
    return f"{run_id:<{width}}  {state:<8}  {rounds:>7}  {accuracy}".rstrip()


def _cells(run: Run) -> list[str]:
    facts = facts_of(run)
    kind = facts.get("evaluation")
    accuracy = percent(facts.get("top1"))
    return [run.status, rounds_of(run), f"{accuracy} {text(kind)}" if kind else accuracy]


def _differences(run: Run, keys: Sequence[str]) -> list[str]:
    """Return the label and the differing keys, in at most two lines."""
    words = in_words(run.config, keys) or in_words(run.config, ["strategy", "model", "dataset"])
    description = ": ".join(part for part in (run.label, words) if part)
    return textwrap.wrap(
        description, WIDTH, initial_indent="    ", subsequent_indent="    ", max_lines=2,
        placeholder=" ...",
    )  # fmt: skip
