"""The papers' privacy tables in `splitmix experiment`, whose cells belong to the attack matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from flwr_splitmix.cli.attack.matrix import run_cells
from flwr_splitmix.cli.terminal import console, table
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.named import experiment_named
from flwr_splitmix.experiments.privacy import tables_of_papers
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyTable, make_table
from flwr_splitmix.files.json_values import strict_json


def on_privacy(names: Sequence[str]) -> bool:
    """Return whether the names are those of privacy experiments.

    Raises
    ------
    ExperimentError
        If only some of them are, or there is no experiment of one of the names.
    """
    for name in names:
        if name not in PRIVACY_EXPERIMENTS:
            experiment_named(name)
    are_on_privacy = [name in PRIVACY_EXPERIMENTS for name in names]
    if any(are_on_privacy) and not all(are_on_privacy):
        raise ExperimentError(
            "experiments on privacy and on accuracy have other cells; run and show them one after "
            "the other"
        )
    return all(are_on_privacy)


def check_whole(epochs: int | None, cells: str | None = None) -> None:
    """Check that neither epochs nor cells were chosen: privacy experiments offer no choice of them.

    Raises
    ------
    ExperimentError
        If one was.
    """
    if epochs is not None or cells is not None:
        raise ExperimentError("an experiment on privacy is run as it is: no epochs, no cells")


def run_privacy(
    names: Sequence[str],
    scale: str,
    *,
    source: str | None,
    seeds: Sequence[int],
    jobs: int,
    device: str,
    home: Path | None,
) -> None:
    """Run the missing cells."""
    size = IMAGES.size(scale)
    place = Place.of(home, size, source, "cpu" if device == "auto" else device)
    cells: dict[MatrixCell, None] = {}
    without: list[str] = []
    for name in names:
        experiment_cells = {cell: None for _, cell in PRIVACY_EXPERIMENTS[name].cells(seeds)}
        if not experiment_cells:
            reason = PRIVACY_EXPERIMENTS[name].note
            without.append(f"{name} has no cell that can be run. {reason}".rstrip())
        cells |= experiment_cells
    if not cells:
        raise ExperimentError("; ".join(without))
    for sentence in without:
        typer.echo(sentence)
    if run_cells(list(cells), place, jobs, gates=False):
        raise typer.Exit(1)


def show_privacy(
    names: Sequence[str], scale: str, form: str, *, source: str | None, home: Path | None
) -> None:
    """Show results next to the paper's numbers, and which of its orderings hold."""
    size = IMAGES.size(scale)
    place = Place.of(home, size, source)
    reports = [make_table(PRIVACY_EXPERIMENTS[name], place) for name in names]
    if form == "json":
        typer.echo(strict_json([tables_of_papers.to_json(each) for each in reports], indent=2))
    elif form == "markdown":
        typer.echo("\n".join(map(tables_of_papers.to_markdown, reports)), nl=False)
    else:
        for each in reports:
            _print(each)


def _print(report: PrivacyTable) -> None:
    out = console()
    out.print(f"\n{tables_of_papers.title(report)}")
    listing = table(*tables_of_papers.HEADINGS)
    for row in tables_of_papers.rows(report):
        listing.add_row(*row)
    out.print(listing)
    if report.experiment.note:
        out.print(report.experiment.note)
    if report.claims:
        out.print(f"\nthe paper's orderings: {tables_of_papers.tally(report)}")
        claims = table("ordering", "here", ">margin")
        for row in tables_of_papers.claim_rows(report):
            claims.add_row(*row)
        out.print(claims)
