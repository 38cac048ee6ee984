"""`splitmix attack matrix`: run and show attacks on methods and defences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.picture import check_name, draw_reconstructions
from flwr_splitmix.cli.terminal import (
    NAME_CELLS,
    NAME_DATA,
    RunDirectory,
    console,
    numbers,
    table,
    terminated_as_interrupted,
)
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.privacy import tables
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place, choose
from flwr_splitmix.experiments.privacy.kinds import Matrix
from flwr_splitmix.experiments.privacy.matrices import IMAGES, TEXTS
from flwr_splitmix.experiments.privacy.results import Result, results
from flwr_splitmix.experiments.privacy.tasks import tasks_of, with_gates
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.runs.places import check_writable
from flwr_splitmix.runs.reports.words import duration
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from flwr_splitmix.experiments.privacy.grid import TaskProgress
    from flwr_splitmix.experiments.privacy.tasks import Task


class MatrixFormat(StrEnum):
    """The output format."""

    table = "table"
    json = "json"
    markdown = "markdown"


matrix = typer.Typer(name="matrix", help="Methods against attacks: run missing cells and show all.")


@matrix.callback()
def _group() -> None:
    """Methods against attacks: run missing cells and show all."""


Scale = Annotated[str, typer.Option("--scale", help="smoke, cpu or paper.")]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells",
        callback=NAME_CELLS,
        metavar="CELLS",
        help="METHOD, METHOD:ATTACK or :ATTACK, separated by commas; 'main': the main methods.",
        show_default=False,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        help="Numbers separated by commas; by default 0, or 0,1,2 for images at scale cpu.",
        show_default=False,
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Cells run in parallel, one process each.")]
DataSet = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        callback=NAME_DATA,
        metavar="SOURCE",
        help="A folder, a shipped or a hub name; for texts a corpus's folder, or sums (no folder).",
        show_default=False,
    ),
]
Format = Annotated[
    MatrixFormat, typer.Option("--format", help="A table, one JSON list, or Markdown.")
]
RunMissing = Annotated[
    bool, typer.Option("--run/--show", help="Run missing cells, or only show existing ones.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")]


@matrix.command()
def images(
    scale: Scale = "smoke",
    cells: Cells = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    dataset: DataSet = None,
    format: Format = MatrixFormat.table,  # noqa: A002 - the option's name
    run: RunMissing = True,
    device: Device = "cpu",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="GRID.png",
            help="A picture: originals, what was sent, reconstructions; one row per method.",
            show_default=False,
        ),
    ] = None,
    run_dir: RunDirectory = None,
) -> None:
    """Attack every method for images, and show what each attack recovers, with floor and gate.

    Victims, cells and their scores per sample are kept below DIR/attacks; an interrupted matrix
    resumes where it stopped.
    """
    if output is not None:
        check_name(output)  # before cells that take hours
    size = IMAGES.size(scale)
    if seeds is None:
        seeds = "0,1,2" if size.name == "cpu" else "0"
    chosen = choose(cells or "", numbers(seeds))
    place = Place.of(run_dir, size, dataset, device)
    failed = run_cells(chosen, place, jobs) if run else 0
    _print(chosen, place, format, ran=run)
    if output is not None:
        _draw(chosen, place, output)
    if failed:
        raise typer.Exit(1)


@matrix.command()
def texts(
    scale: Scale = "smoke",
    cells: Cells = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    dataset: DataSet = None,
    format: Format = MatrixFormat.table,  # noqa: A002 - the option's name
    run: RunMissing = True,
    device: Device = "cpu",
    run_dir: RunDirectory = None,
) -> None:
    """Attack methods that hide texts, and show what each attack recovers, with floor and utility.

    Victims, cells and their scores per text are kept below DIR/attacks; an interrupted matrix
    resumes where it stopped. Victims are trained on the device; attacks run on the CPU. Scale cpu
    needs `splitmix model fetch stories15m`, and CoLA's folder.
    """
    size = TEXTS.size(scale)
    chosen = choose(cells or "", numbers("0" if seeds is None else seeds), TEXTS)
    place = Place.of(run_dir, size, dataset, device)
    failed = run_cells(chosen, place, jobs) if run else 0
    _print(chosen, place, format, ran=run)
    if failed:
        raise typer.Exit(1)


def run_cells(chosen: Sequence[MatrixCell], place: Place, jobs: int, *, gates: bool = True) -> int:
    """Run missing cells, with progress on standard error; return the number of failures.

    Parameters
    ----------
    gates
        Whether to also run the cells of the unprotected method, which attacks are judged by.
    """
    if jobs < 1:
        raise ExperimentError(f"jobs is {jobs}; it must be at least 1")
    tasks = tasks_of(with_gates(chosen, place.matrix) if gates else chosen, place)
    if not tasks:
        return 0
    # Loading torch takes seconds, so check names and numbers first.
    from flwr_splitmix.experiments.beforehand import check_matrix
    from flwr_splitmix.experiments.privacy.grid import run_tasks

    check_matrix(place)
    check_writable(place.home, "--run-dir", "attacks")
    with _MatrixDisplay(len(tasks)) as display, terminated_as_interrupted():
        try:
            failures = run_tasks(tasks, place, jobs=jobs, on_progress=display.show)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command continues from here", err=True)
            raise typer.Exit(130) from None
    if failures:
        typer.echo(f"{len(failures)} of {counted(len(tasks), 'task')} failed", err=True)
    return len(failures)


def _print(chosen: Sequence[MatrixCell], place: Place, form: MatrixFormat, *, ran: bool) -> None:
    cell_results = results(chosen, place)
    if form is MatrixFormat.json:
        typer.echo(strict_json([result.to_json() for result in cell_results], indent=2))
    elif not cell_results:
        hint = (
            ""
            if ran
            else "; without --show the same command runs them, and --run-dir, --scale, --dataset "
            "and --seeds name what was run elsewhere"
        )
        message = f"nothing of {counted(len(chosen), 'cell')} has been run in {place.folder}{hint}"
        typer.echo(message, err=True)
    elif form is MatrixFormat.markdown:
        typer.echo(tables.to_markdown(cell_results, place.matrix), nl=False)
    else:
        out = console()
        _print_table(cell_results, place.matrix, out)


def _draw(chosen: Sequence[MatrixCell], place: Place, output: Path) -> None:
    from flwr_splitmix.attacks.gallery import Reconstructions
    from flwr_splitmix.attacks.results import kept_results

    shown: dict[str, list[Reconstructions]] = {}
    for cell in chosen:
        row = shown.setdefault(f"{cell.row.name}, seed {cell.seed}", [])
        cell_results = kept_results(cell.folder(place))
        row += [result.pictures for result in cell_results if result.pictures is not None]
    draw_reconstructions(list(shown.values()), output)


def _print_table(cell_results: Sequence[Result], matrix: Matrix, out: Console) -> None:
    for block in tables.blocks(cell_results, matrix):
        listing = table(*block.headings)
        for row in block.rows:
            listing.add_row(*row)
        out.print(listing)
        out.print()
    out.print(matrix.legend)


class _MatrixDisplay:
    """A progress bar and a line for each finished task, on standard error."""

    def __init__(self, tasks: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self.whole = self.bar.add_task("matrix", total=tasks)
        self.began: dict[Task, float] = {}

    def __enter__(self) -> _MatrixDisplay:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, progress: TaskProgress) -> None:
        """Show that a task has begun or ended."""
        if progress.state == "begun":
            self.began[progress.task] = time.monotonic()
            self.bar.update(self.whole, description=str(progress.task))
            return
        self.bar.advance(self.whole)
        took = time.monotonic() - self.began.get(progress.task, time.monotonic())
        suffix = f": {progress.words}" if progress.words else ""
        self.console.print(f"{progress.task}: {progress.state} in {duration(took)}{suffix}")
