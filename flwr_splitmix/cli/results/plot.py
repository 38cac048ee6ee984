"""`splitmix plot`: accuracy and communication of several runs in one picture."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.picture import check_name, save, two_panels
from flwr_splitmix.cli.terminal import RunDirectory, RunNames, text
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.comparison import Comparison, compare
from flwr_splitmix.runs.reports.curves import accuracy_label, add_legend, as_label
from flwr_splitmix.runs.reports.differences import BOOKKEEPING, PLACE, differing, in_words
from flwr_splitmix.runs.reports.facts import facts_of
from flwr_splitmix.runs.selection import select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(
    runs: RunNames,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.png", help="The picture; .pdf and .svg too."),
    ],
    mix_kinds: Annotated[
        bool,
        typer.Option("--mix-kinds", help="Put accuracies of several kinds side by side."),
    ] = False,
    run_dir: RunDirectory = None,
) -> None:
    """Draw top-1 accuracy and cumulative uplink over rounds, one line per run."""
    opened = select(runs, run_dir)
    for run in opened:
        if not run.rows:
            raise RunError(f"run {run.id} has no rounds to plot yet")
    compared = compare(opened, mix_kinds=mix_kinds)
    check_name(output)
    save(_draw(compared), output)
    typer.echo(f"wrote {output}")


def _draw(compared: Comparison) -> Figure:
    figure = two_panels(lambda accuracy, uplink: _draw_panels(compared, accuracy, uplink))
    add_legend(figure, figure.axes[0])
    return figure


def _draw_panels(compared: Comparison, accuracy: Axes, uplink: Axes) -> None:
    runs = compared.runs
    keys = differing([run.config for run in runs], {*BOOKKEEPING, *PLACE, "strategy"})
    for run in runs:
        words = ", ".join(filter(None, (run.label, in_words(run.config, keys), run.id)))
        label = f"{text(facts_of(run).get('strategy'))} ({words})"
        evaluated = [row for row in run.rows if row["accuracy"] is not None]
        accuracy.plot(
            [row["round"] for row in evaluated],
            [100 * row["accuracy"] for row in evaluated],
            marker="o",
            markersize=3,
            label=as_label(label),
        )
        totals = accumulate(row["uplink_bytes"] or 0 for row in run.rows)
        uplink.plot(
            [row["round"] for row in run.rows],
            [total / 1e6 for total in totals],
            marker="o" if len(run.rows) == 1 else None,
        )
    accuracy.set(title="top-1 accuracy", xlabel="round", ylabel=accuracy_label(compared))
    uplink.set(title="cumulative uplink", xlabel="round", ylabel="uplink (MB)")
    uplink.set_ylim(bottom=0)
