"""`splitmix report`: writes one self-contained HTML file about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_splitmix.cli.terminal import RunDirectory, RunNames, write_output
from flwr_splitmix.methods import BY_NAME, plain
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.comparison import compare
from flwr_splitmix.runs.reports.page import page
from flwr_splitmix.runs.selection import select


def report(
    runs: RunNames,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page.")
    ] = Path("report.html"),
    mixtures: Annotated[
        bool,
        typer.Option(
            "--mixtures", help="Include pictures of mixtures, for runs with the key keep-mixtures."
        ),
    ] = False,
    mix_kinds: Annotated[
        bool,
        typer.Option("--mix-kinds", help="Put accuracies of several kinds side by side."),
    ] = False,
    run_dir: RunDirectory = None,
) -> None:
    """Write a report: one self-contained page with curves, rounds, clients, bytes and privacy."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise RunError(f"cannot write {output}: a report's name ends in .html")
    compared = compare(select(runs, run_dir), mix_kinds=mix_kinds)
    html = page(compared, hides=_hidden_by_method(), mixtures=mixtures)
    write_output(output, html.encode())
    typer.echo(f"wrote {output}")


def _hidden_by_method() -> dict[str, str]:
    """Return the catalogue's sentence on what each method protects."""
    return {name: plain(method.protects) for name, method in BY_NAME.items()}
