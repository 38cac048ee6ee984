"""Curves of accuracy over rounds, uplink and time, distinguishable in black and white."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from flwr_splitmix.extras import how_to_install
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.reports.comparison import Comparison, Group, mean_and_deviation
from flwr_splitmix.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Number = Callable[[Mapping[str, Any]], float | None]
"""A number of a round's row; None if it has none."""

Over = Literal["rounds", "uplink", "time"]

OVER: dict[Over, str] = {
    "rounds": "round",
    "uplink": "uplink, cumulative (MB)",
    "time": "time of the rounds, cumulative (s)",
}
"""The x axes of accuracy, with their labels."""

_COLUMN: dict[Over, tuple[str, float]] = {"uplink": ("uplink_bytes", 1e-6), "time": ("seconds", 1)}

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
"""Colours after Okabe and Ito, safe for colour-blind readers."""

_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 3)))
_MARKERS = "os^Dv*"


@dataclass(frozen=True)
class Curve:
    """Accuracy (in percent) of a group, with its band.

    Parameters
    ----------
    x, y
        One point per round in which all runs of the group were evaluated: means over the runs.
    half_width
        Half width of the band, a standard deviation over `band`; None without a band.
    band
        "seeds" or "clients"; "" without a band.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    half_width: tuple[float, ...] | None
    band: str


def curve_of(group: Group, over: Over) -> Curve:
    """Return a group's curve; its band is over seeds, or with one run over the run's clients."""
    runs = [_points(run, over) for run in group.runs]
    shared = sorted(set.intersection(*(set(points) for points in runs)))
    x, y, half, spreads = [], [], [], []
    for number in shared:
        points = [points[number] for points in runs]
        x.append(mean_and_deviation([at for at, _, _ in points])[0])
        mean, deviation = mean_and_deviation([100 * accuracy for _, accuracy, _ in points])
        y.append(mean)
        half.append(deviation)
        spreads.append(points[0][2])
    widths, band = (half, "seeds") if len(runs) > 1 else (spreads, "clients")
    scale = 1 if band == "seeds" else 100
    half_widths = [scale * width for width in widths if width is not None]
    if not half_widths or len(half_widths) < len(shared):
        return Curve(group.name, tuple(x), tuple(y), None, "")
    return Curve(group.name, tuple(x), tuple(y), tuple(half_widths), band)


def _points(run: Run, over: Over) -> dict[int, tuple[float, float, float | None]]:
    """Return by evaluated round: (x position, accuracy, its spread over clients)."""
    rows = run.rows
    at = [float(row["round"]) for row in rows]
    if over in _COLUMN:
        name, scale = _COLUMN[over]
        at = [total * scale for total in accumulate(float(row[name] or 0) for row in rows)]
    return {
        row["round"]: (place, row["accuracy"], row.get("accuracy_spread"))
        for place, row in zip(at, rows, strict=True)
        if row["accuracy"] is not None
    }


def new_figure(width: float, height: float) -> Figure:
    """Make a figure without a display.

    Raises
    ------
    RunError
        If matplotlib is not installed.
    """
    try:
        # Slow to load, and only needed here. Without pyplot: no display, no global state.
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(f"pictures need matplotlib: {how_to_install('report')}") from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_curves(
    comparison: Comparison, overs: Sequence[Over] = ("rounds", "uplink", "time")
) -> Figure:
    """Draw accuracy over each of `overs`: one panel each, one line per group.

    Raises
    ------
    RunError
        If matplotlib is not installed, or no run was evaluated.
    """
    if not was_evaluated(comparison):
        raise RunError(
            "there is nothing to draw: no round was evaluated in "
            + ", ".join(run.id for run in comparison.runs)
        )
    figure = new_figure(max(4.6, 3.9 * len(overs)), 3.5 + 0.18 * len(comparison.groups))
    panels = figure.subplots(1, len(overs), squeeze=False, sharey=True)[0]
    bands: set[str] = set()
    for axes, over in zip(panels, overs, strict=True):
        bands |= draw_panel(axes, comparison, over)
    panels[0].set_ylabel(accuracy_label(comparison))
    add_legend(figure, panels[0], band_in_words(bands))
    return figure


def add_legend(figure: Figure, axes: Axes, title: str = "") -> None:
    """Put a panel's legend below all panels: as many columns as fit, long labels in lines."""
    handles, labels = axes.get_legend_handles_labels()
    room = int(12 * figure.get_figwidth())  # characters of 8 points; a handle takes ten
    columns = max(1, min(len(labels), room // (max(map(len, labels)) + 10)))
    figure.legend(
        handles, [fill(label, room // columns - 10) for label in labels], ncols=columns,
        title=title, title_fontsize=8, fontsize=8, frameon=False, loc="outside lower center",
        handlelength=4,
    )  # fmt: skip


def was_evaluated(comparison: Comparison) -> bool:
    """Return whether there is an accuracy to draw."""
    return any(row["accuracy"] is not None for run in comparison.runs for row in run.rows)


def accuracy_label(comparison: Comparison) -> str:
    """Return the label of the y axis, with the kind of accuracy."""
    return "top-1 accuracy in %" + (f" ({comparison.kind})" if comparison.kind else "")


def band_in_words(bands: Collection[str]) -> str:
    """Return what bands show, in words; "" if there are none."""
    return f"bands: ± 1 s.d. over {' or '.join(sorted(bands))}" if bands else ""


def draw_panel(axes: Axes, comparison: Comparison, over: Over) -> set[str]:
    """Draw accuracy into a panel, one line per group; return the kinds of bands."""
    curves = [curve_of(group, over) for group in comparison.groups]
    _draw_lines(axes, curves)
    axes.set_xlabel(OVER[over])
    if over != "rounds":
        axes.set_xlim(left=0)
    return {curve.band for curve in curves} - {""}


def has_numbers(comparison: Comparison, number: Number) -> bool:
    """Return whether a round has a finite number to draw."""
    values = (number(row) for run in comparison.runs for row in run.rows)
    return any(value is not None and math.isfinite(value) for value in values)


def draw_numbers(axes: Axes, comparison: Comparison, number: Number) -> None:
    """Draw a number of each round over rounds, one line per group: means over its runs."""
    curves = []
    for group in comparison.groups:
        values: dict[int, list[float]] = {}
        for run in group.runs:
            for row in run.rows:
                if (value := number(row)) is not None and math.isfinite(value):
                    values.setdefault(row["round"], []).append(value)
        x = tuple(sorted(values))  # runs may lack rounds
        y = tuple(mean_and_deviation(values[at])[0] for at in x)
        curves.append(Curve(group.name, x, y, None, ""))
    _draw_lines(axes, curves)
    axes.set_xlabel(OVER["rounds"])


def as_label(name: str) -> str:
    """Return a name that matplotlib shows whole: no dollar begins a formula, no "_" hides it."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _draw_lines(axes: Axes, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator

    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            curve.x,
            curve.y,
            color=colour,
            # Dashes and markers, cycled out of step, distinguish lines without colour.
            linestyle=_DASHES[index % len(_DASHES)],
            marker=_MARKERS[(index + index // len(_DASHES)) % len(_MARKERS)],
            markersize=4,
            markevery=max(1, len(curve.x) // 12),
            label=as_label(curve.name),
        )
        if curve.half_width is not None:
            low = [y - half for y, half in zip(curve.y, curve.half_width, strict=True)]
            high = [y + half for y, half in zip(curve.y, curve.half_width, strict=True)]
            axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
