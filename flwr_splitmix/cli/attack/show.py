"""`splitmix attack show` and `forget`: show and remove results of attacks on runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.attack.measures import measures_table
from flwr_splitmix.cli.picture import draw_reconstructions
from flwr_splitmix.cli.terminal import RUNS_HELP, RunDirectory, console
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.attack_recording import results_dir
from flwr_splitmix.runs.reports.words import size
from flwr_splitmix.runs.selection import select, select_one
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.attacks.gallery import Reconstructions


def show(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN...]", help=f"{RUNS_HELP} By default the newest run."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="GRID.png",
            help="A picture: originals, what was sent, reconstructions; one row per run.",
            show_default=False,
        ),
    ] = None,
    run_dir: RunDirectory = None,
) -> None:  # fmt: skip
    """Show the results of attacks on runs, with the papers' numbers.

    What each score means: docs/attacks.md, "Metrics".
    """
    from flwr_splitmix.attacks.results import kept_results, paper_note, stopped_note, title

    out, shown = console(), []
    for opened in select(runs or ["latest"], run_dir):
        results = kept_results(results_dir(opened))
        if not results:
            raise RunError(
                f"no attack on run {opened.id} has been scored yet: splitmix attack run "
                f"{opened.id} --attack NAME, where NAME is one of `splitmix attack list`"
            )
        pictures: list[Reconstructions] = []
        for result in results:
            out.print(measures_table(f"\n{title(result, opened.id)}", result.measures))
            for note in filter(None, (stopped_note(result), paper_note(result))):
                out.print(note)
            if result.pictures is not None:
                pictures.append(result.pictures)
        shown.append(pictures)
    if output is not None:
        draw_reconstructions(shown, output)


def forget(
    run: Annotated[str, typer.Argument(metavar="RUN|latest", help="A run's id, or its label.")],
    run_dir: RunDirectory = None,
) -> None:
    """Remove a run's recording and all results of attacks on it."""
    from flwr_splitmix.runs.attack_recording import forget as remove

    opened = select_one(run, run_dir)
    running = opened.status == "running"
    recording = remove(opened)
    if recording is None:
        typer.echo(f"run {opened.id} has no recording")
        return
    steps = f"{counted(recording.steps, 'recorded step')} and " if recording.steps else ""
    typer.echo(
        f"removed {steps}all results of attacks on run {opened.id}: {size(recording.nbytes)}"
    )
    if running and recording.steps:  # otherwise it makes its folder with its first step
        typer.echo("the run is in progress, and records nothing further until it is resumed")
