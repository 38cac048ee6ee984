"""`splitmix compare`: compares runs in a table and in curves."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.picture import EXTENSIONS, save
from flwr_splitmix.cli.terminal import (
    RunDirectory,
    RunNames,
    console,
    print_sentence,
    table,
    write_output,
)
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.comparison import Comparison
from flwr_splitmix.runs.reports.comparison import compare as compare_runs
from flwr_splitmix.runs.reports.curves import OVER, Over, draw_curves
from flwr_splitmix.runs.reports.tables import WRITERS, ComparisonTable, tabulate
from flwr_splitmix.runs.selection import select


class TableFormat(StrEnum):
    """Output format of `splitmix compare`."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"


class XAxis(StrEnum):
    """The x axis of accuracy curves."""

    all = "all"
    rounds = "rounds"
    uplink = "uplink"
    time = "time"


_FORMATS = {".csv": "csv", ".md": "markdown", ".tex": "latex"}


def compare(
    runs: RunNames,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="May be repeated: .csv, .md or .tex for the table, .png, .pdf or .svg for curves.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        TableFormat, typer.Option("--format", help="Format of the printed table.")
    ] = TableFormat.table,
    over: Annotated[
        XAxis | None,
        typer.Option(
            "--over", help="The x axis of the curves; by default all.", show_default=False
        ),
    ] = None,
    mix_kinds: Annotated[
        bool,
        typer.Option("--mix-kinds", help="Put accuracies of several kinds side by side."),
    ] = False,
    run_dir: RunDirectory = None,
) -> None:
    """Compare runs by the keys that differ, with mean and deviation over seeds.

    Means are over runs that differ only in their seed; "±" is their sample standard deviation.
    """
    outputs = output or []
    for file in outputs:
        if file.suffix.lower() not in (*_FORMATS, *EXTENSIONS):
            raise RunError(
                f"cannot write {file}: its name ends in none of "
                f"{', '.join([*_FORMATS, *EXTENSIONS])}"
            )
    if over is not None and all(file.suffix.lower() in _FORMATS for file in outputs):
        raise RunError(
            "--over is the x axis of curves, and no file for curves is named; add -o curves.png, "
            "or leave it out"
        )
    comparison = compare_runs(select(runs, run_dir), mix_kinds=mix_kinds)
    comparison_table = tabulate(comparison)
    for file in outputs:
        _write(file, comparison, comparison_table, over or XAxis.all)
    if format is TableFormat.table:
        _print(comparison, comparison_table)
    else:
        typer.echo(WRITERS[format](comparison_table), nl=False)
    for note in comparison.notes:
        print_sentence(note, err=True)
    for file in outputs:
        typer.echo(f"wrote {file}", err=True)


def _write(
    file: Path, comparison: Comparison, comparison_table: ComparisonTable, over: XAxis
) -> None:
    kind = _FORMATS.get(file.suffix.lower())
    if kind is None:
        overs: list[Over] = [name for name in OVER if over in (XAxis.all, name)]
        save(draw_curves(comparison, overs), file)
        return
    write_output(file, WRITERS[kind](comparison_table).encode())


def _print(comparison: Comparison, comparison_table: ComparisonTable) -> None:
    named = len(comparison_table.keys) or 1
    headings = [
        title if index < named else f">{title}"
        for index, title in enumerate(comparison_table.headings())
    ]
    listing = table(*headings)
    for row in comparison_table.rows():
        listing.add_row(*row)
    console().print(listing)
