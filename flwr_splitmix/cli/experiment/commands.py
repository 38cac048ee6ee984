"""`splitmix experiment`: lists, runs and shows the papers' tables by name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.experiment.grid_display import GridDisplay
from flwr_splitmix.cli.experiment.privacy import (
    check_whole,
    on_privacy,
    run_privacy,
    show_privacy,
)
from flwr_splitmix.cli.terminal import (
    NAME_CELLS,
    NAME_DATA,
    RunDirectory,
    console,
    numbers,
    table,
    terminated_as_interrupted,
)
from flwr_splitmix.experiments import (
    EXPERIMENTS,
    ExperimentError,
    experiment_named,
    scale_named,
    tables,
)
from flwr_splitmix.experiments.cells import dataset_name
from flwr_splitmix.experiments.filter import choose
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.runs.places import check_writable
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from flwr_splitmix.experiments.cells import Cell
    from flwr_splitmix.experiments.grid import Workplace
    from flwr_splitmix.experiments.report import Table


class ReportFormat(StrEnum):
    """Output format of `splitmix experiment show`."""

    table = "table"
    json = "json"
    markdown = "markdown"


experiment = typer.Typer(
    name="experiment", help="The papers' tables and figures: run them, compare the numbers."
)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="See `experiment list`.")]
ScaleName = Annotated[str, typer.Option("--scale", help="smoke, cpu or paper.")]
DataSet = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        callback=NAME_DATA,
        metavar="SOURCE",
        help="A folder, a shipped or a hub name; by default the scale's.",
        show_default=False,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs", help="Number of epochs, instead of the experiment's.", show_default=False
    ),
]


@experiment.command("list")
def list_() -> None:
    """List all experiments."""
    listing = table("name", ">cells", "shows", "source")
    for each in EXPERIMENTS.values():
        runnable = sum(entry.variant is not None for entry in each.entries)
        listing.add_row(each.name, str(runnable), each.title, each.source)
    for on_leaks in PRIVACY_EXPERIMENTS.values():
        runnable = sum(entry.victim is not None for entry in on_leaks.entries)
        listing.add_row(on_leaks.name, str(runnable), on_leaks.title, on_leaks.source)
    console().print(listing)


@experiment.command()
def run(
    names: Names,
    scale: ScaleName = "cpu",
    dataset: DataSet = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Numbers separated by commas.")] = "0",
    epochs: Epochs = None,
    jobs: Annotated[
        int, typer.Option("--jobs", help="Cells run in parallel, one process each.")
    ] = 1,
    cells: Annotated[
        str | None,
        typer.Option(
            "--cells",
            callback=NAME_CELLS,
            metavar="FILTER",
            help="Only cells that match: 'PSL n=10, CutMixSL alpha=6'.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")] = "auto",
    run_dir: RunDirectory = None,
) -> None:
    """Run the unfinished cells; interrupted cells are resumed."""
    if on_privacy(names):
        check_whole(epochs, cells)
        run_privacy(
            names, scale,
            source=dataset, seeds=numbers(seeds), jobs=jobs, device=device, home=run_dir,
        )  # fmt: skip
        return
    _run_cells(
        names, scale,
        dataset=dataset, seeds=seeds, epochs=epochs, jobs=jobs, cells=cells, device=device,
        home=run_dir,
    )  # fmt: skip


def _run_cells(
    names: Sequence[str],
    scale: str,
    *,
    dataset: str | None,
    seeds: str,
    epochs: int | None,
    jobs: int,
    cells: str | None,
    device: str,
    home: Path | None,
) -> None:
    """Run the unfinished cells of accuracy; raise Exit if one fails or the user interrupts."""
    size = scale_named(scale)
    if jobs < 1:
        raise ExperimentError(f"jobs is {jobs}; it must be at least 1")
    sources = {
        name: size.source(experiment_named(name).track) if dataset is None else dataset
        for name in names
    }
    pairs = [
        pair
        for name, source in sources.items()
        for pair in experiment_named(name).cells(
            size, seeds=numbers(seeds), source=source, epochs=epochs
        )
    ]
    chosen = list(dict.fromkeys(cell for _, cell in choose(pairs, cells or "")))
    # Loading torch takes seconds, so check names and numbers first.
    from flwr_splitmix.experiments.grid import Workplace, unfinished

    todo = unfinished(chosen, home)
    grids = [
        (
            [cell for cell in todo if cell.dataset == dataset_name(source)],
            Workplace(home, source, device),
        )
        for source in dict.fromkeys(sources.values())
    ]
    _check_grids(grids)
    if todo:
        check_writable(home, "--run-dir")
    finished = len(chosen) - len(todo)
    console().print(f"{counted(len(chosen), 'cell')}, {finished} of them finished before")
    if failed := _run_grids(grids, todo, jobs):
        typer.echo(f"{failed} of {counted(len(todo), 'cell')} failed", err=True)
        raise typer.Exit(1)


def _check_grids(grids: Sequence[tuple[Sequence[Cell], Workplace]]) -> None:
    from flwr_splitmix.experiments.beforehand import check_cells

    for cells, place in grids:
        if cells:
            check_cells(cells, place)


def _run_grids(
    grids: Sequence[tuple[Sequence[Cell], Workplace]], todo: list[Cell], jobs: int
) -> int:
    """Run cells, each at its data set's place, and return how many fail."""
    from flwr_splitmix.experiments.grid import run_grid

    with terminated_as_interrupted(), GridDisplay(todo) as display:
        try:
            return sum(
                len(run_grid(cells, place, jobs=jobs, on_progress=display.show))
                for cells, place in grids
            )
        except KeyboardInterrupt:
            typer.echo("stopped; the same command continues from here", err=True)
            raise typer.Exit(130) from None


@experiment.command()
def show(
    names: Names,
    scale: ScaleName = "cpu",
    format: Annotated[  # noqa: A002 - the option's name
        ReportFormat, typer.Option("--format", help="Tables, Markdown, or one JSON list.")
    ] = ReportFormat.table,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            callback=NAME_DATA,
            metavar="NAME",
            help="Only this data set.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Only runs of this length.", show_default=False)
    ] = None,
    run_dir: RunDirectory = None,
) -> None:
    """Show results next to the paper's numbers, and which of its orderings hold."""
    if on_privacy(names):
        check_whole(epochs)
        show_privacy(names, scale, format.value, source=dataset, home=run_dir)
        return
    size = scale_named(scale)
    name = None if dataset is None else dataset_name(dataset)
    reports = [
        report
        for experiment_name in names
        for report in make_tables(
            experiment_named(experiment_name), size, run_dir, dataset=name, epochs=epochs
        )
    ]
    if format is ReportFormat.json:
        typer.echo(strict_json(tables.to_json(reports), indent=2))
    elif format is ReportFormat.markdown:
        typer.echo(tables.to_markdown(reports), nl=False)
    else:
        out = console()
        for report in reports:
            _print(report, out)


def _print(report: Table, out: Console) -> None:
    _print_rows(tables.title(report), tables.headings(report), tables.rows(report), out)
    if report.experiment.note:
        out.print(report.experiment.note)
    if costs := tables.cost_rows(report):
        _print_rows("what one client needs", tables.COST_HEADINGS, costs, out)
    if report.claims:
        counted = f"the paper's orderings: {tables.tally(report.claims)}"
        _print_rows(counted, ("ordering", "here", "margin"), tables.claim_rows(report.claims), out)


def _print_rows(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], out: Console
) -> None:
    words = ("method", "at", "seeds", "ordering", "here")
    listing = table(*(name if name in words else f">{name}" for name in headings))
    for row in rows:
        listing.add_row(*row)
    out.print(f"\n{title}")
    out.print(listing)
