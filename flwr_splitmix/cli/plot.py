"""`splitmix plot`: runs side by side, accuracy and what it cost in communication."""

from __future__ import annotations

import io
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flwr_splitmix.cli.terminal import RunDirectory, text
from flwr_splitmix.runs import Run, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXTENSIONS = (".pdf", ".png", ".svg")


def plot(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help='Ids, or "latest".')],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.png", help="The picture; .pdf and .svg too."),
    ],
    run_dir: RunDirectory = None,
) -> None:
    """Draw top-1 accuracy and cumulative uplink over rounds, one line a run."""
    found = [Run.open(name, home=run_dir) for name in runs]
    for run in found:
        if not run.rows:
            raise RunError(f"run {run.id} has no rounds to plot yet")
    extension = output.suffix.lower()
    if extension not in _EXTENSIONS:
        raise RunError(f"cannot write {output}: a plot's name ends in {', '.join(_EXTENSIONS)}")
    picture = io.BytesIO()
    _draw(found).savefig(picture, format=extension[1:], dpi=150)
    try:
        output.write_bytes(picture.getvalue())
    except OSError as error:
        raise RunError(f"cannot write {output}: {error.strerror}") from error
    typer.echo(f"wrote {output}")


def _draw(runs: list[Run]) -> Figure:
    # Slow to load, and only needed here. Without pyplot: no display, no global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    accuracy, uplink = figure.subplots(1, 2)
    for run in runs:
        label = f"{text(run.config.get('strategy'))} ({run.id})"
        evaluated = [row for row in run.rows if row["accuracy"] is not None]
        accuracy.plot(
            [row["round"] for row in evaluated],
            [100 * row["accuracy"] for row in evaluated],
            marker="o",
            markersize=3,
            label=label,
        )
        sent = accumulate(row["uplink_bytes"] or 0 for row in run.rows)
        uplink.plot(
            [row["round"] for row in run.rows],
            [total / 1e6 for total in sent],
            marker="o" if len(run.rows) == 1 else None,
        )
    accuracy.set(title="top-1 accuracy", xlabel="round", ylabel="top-1 (%)")
    uplink.set(title="cumulative uplink", xlabel="round", ylabel="uplink (MB)")
    uplink.set_ylim(bottom=0)
    for axes in (accuracy, uplink):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(2, len(runs)), frameon=False, fontsize=8)
    return figure
