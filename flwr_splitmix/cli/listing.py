"""`splitmix runs`: every run on one line."""

from __future__ import annotations

import typer

from flwr_splitmix.cli.terminal import NOTHING, RunDirectory, console, percent, table, text
from flwr_splitmix.runs import Run, RunError


def runs(run_dir: RunDirectory = None) -> None:
    """List the runs, oldest first."""
    all_runs = Run.list(run_dir)
    if not all_runs:
        typer.echo("there are no runs yet")
        return
    listing = table("id", "strategy", "model", ">clients", ">rounds", ">top-1", "status")
    damages = []
    for run in all_runs:
        try:
            listing.add_row(run.id, *_line(run))
        except RunError as error:
            listing.add_row(run.id, *[NOTHING] * 5, "unreadable")
            damages.append(str(error))
    console().print(listing)
    for damage in damages:
        typer.echo(damage, err=True)


def _line(run: Run) -> list[str]:
    summary, rows = run.summary or {}, run.rows
    facts = {**run.config, **summary}
    done = str(rows[-1]["round"] if rows else 0)
    wanted = run.config.get("num-server-rounds")
    measured = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    return [
        text(facts.get("strategy")),
        text(facts.get("model")),
        text(facts.get("clients")),
        done if wanted is None else f"{done}/{wanted}",
        percent(summary.get("top1", measured[-1] if measured else None)),
        run.status,
    ]
