"""The plot of `splitmix check -o`: each cut's cost for a client, and the duration of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flwr_splitmix.cli.picture import save
from flwr_splitmix.extras import how_to_install

if TYPE_CHECKING:
    from flwr_splitmix.apps.checking.report import Advice
    from flwr_splitmix.segments.advice import CutCosts

_PANELS: tuple[tuple[str, Callable[[CutCosts], float]], ...] = (
    ("client's parameters [M]", lambda cut: cut.client_parameters / 1e6),
    ("client's multiply-adds a step [M]", lambda cut: cut.client_macs / 1e6),
    ("bytes up a step [MB]", lambda cut: cut.uplink_bytes / 1e6),
    ("step, predicted [ms]", lambda cut: cut.step_s * 1e3),
)


def plot_cuts(advice: Advice, path: Path) -> None:
    """Write a bar chart with one bar per cut; the configured one is hatched.

    The path's suffix determines the file format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        typer.echo(f"a plot needs matplotlib: {how_to_install('report')}", err=True)
        raise typer.Exit(1) from None
    cuts = list(advice.cuts)
    figure = Figure(figsize=(10, 1.4 + 0.24 * len(cuts)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
    names = [cut.cut_at or "own" for cut in cuts]
    for axes, (title, value) in zip(panels, _PANELS, strict=True):
        bars = axes.barh(names, [value(cut) for cut in cuts], color="0.75", edgecolor="0.2")
        for bar, cut in zip(bars, cuts, strict=True):
            if cut.default:
                bar.set_hatch("///")
        axes.set_xlabel(title, fontsize="small")
        axes.tick_params(labelsize="small")
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
    panels[0].invert_yaxis()
    save(figure, path)
