"""A report: one self-contained HTML page about one or more runs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING

from flwr_splitmix.runs.epsilon import epsilon_of
from flwr_splitmix.runs.reports import sections
from flwr_splitmix.runs.reports.comparison import Comparison
from flwr_splitmix.runs.reports.curves import (
    OVER,
    Number,
    accuracy_label,
    as_label,
    band_in_words,
    curve_of,
    draw_numbers,
    draw_panel,
    has_numbers,
    new_figure,
    was_evaluated,
)
from flwr_splitmix.runs.reports.markup import grid, paragraph, tag
from flwr_splitmix.runs.reports.mixtures import pictures
from flwr_splitmix.runs.reports.style import STYLE
from flwr_splitmix.runs.reports.svg import as_svg, panel
from flwr_splitmix.runs.reports.tables import tabulate
from flwr_splitmix.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUMBERS: dict[str, tuple[str, Number]] = {
    "loss": ("training loss", itemgetter("loss")),
    "epsilon": ("epsilon, the largest of the clients", epsilon_of),
}
"""Further curves: label, and number of a row, by the name of the figure."""


def page(
    comparison: Comparison, *, hides: Mapping[str, str] | None = None, mixtures: bool = False
) -> str:
    """Return a report's HTML, which loads no other resources.

    Parameters
    ----------
    hides
        By strategy, the data that it hides from the server.
    mixtures
        Whether to show the mixtures kept by runs.

    Raises
    ------
    RunError
        If matplotlib is not installed, a run cannot be read, or `mixtures` is set and no run has
        kept any.
    """
    runs = comparison.runs
    title = runs[0].label or runs[0].id if len(runs) == 1 else f"{len(runs)} runs"
    shown = pictures(runs) if mixtures else {}
    body = [
        tag("h1", escape(f"Split learning: {title}")),
        paragraph(f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by splitmix report.", "soft"),
        *([_table(comparison)] if len(runs) > 1 else []),
        _curves(comparison),
        *(_run(run, (hides or {}).get(str(run.config.get("strategy")), ""), shown) for run in runs),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _table(comparison: Comparison) -> str:
    table = tabulate(comparison)
    named = len(table.keys) or 1
    headings = [t if i < named else f">{t}" for i, t in enumerate(table.headings())]
    caption = "Means ± standard deviations over runs that differ in their seed alone"
    notes = "".join(paragraph(note, "soft") for note in comparison.notes)
    return "<h2>Comparison</h2>" + grid(headings, table.rows(), caption=caption) + notes


def _curves(comparison: Comparison) -> str:
    title = "<h2>Curves</h2>"
    figures, description = [], ""
    if was_evaluated(comparison):
        bands = {curve_of(group, "rounds").band for group in comparison.groups} - {""}
        description = f"{accuracy_label(comparison)}; {band_in_words(bands)}".rstrip("; ")
        description = description[:1].upper() + description[1:]
        for over, label in OVER.items():
            draw = partial(_accuracy, comparison, over)
            figures.append(
                (f"accuracy over {label}", panel(draw, f"over-{over}", f"{description}"))
            )
    else:
        description = "No round was evaluated."
    for name, (label, number) in _NUMBERS.items():
        if has_numbers(comparison, number):
            draw = partial(_numbers, comparison, number, label)
            figures.append((f"{label} over rounds", panel(draw, f"column-{name}", label)))
    markup = "".join(tag("figure", svg, tag("figcaption", escape(name))) for name, svg in figures)
    many = len(comparison.groups) > 1 and figures
    legend = _legend(comparison) if many else ""
    return title + paragraph(f"{description}.") + legend + tag("div", markup, class_="figures")


def _accuracy(comparison: Comparison, over: str, axes: Axes) -> None:
    draw_panel(axes, comparison, next(quantity for quantity in OVER if quantity == over))
    axes.set_ylabel("top-1 accuracy in %")


def _numbers(comparison: Comparison, number: Number, label: str, axes: Axes) -> None:
    draw_numbers(axes, comparison, number)
    axes.set_ylabel(label)


def _legend(comparison: Comparison) -> str:
    names = [as_label("\n".join(textwrap.wrap(group.name, 52))) for group in comparison.groups]
    lines = sum(name.count("\n") + 1 for name in names)

    def make() -> Figure:
        hidden = new_figure(1, 1).subplots()
        draw_panel(hidden, comparison, "rounds")
        handles, _ = hidden.get_legend_handles_labels()
        figure = new_figure(4.6, 0.1 + 0.2 * lines)
        figure.legend(
            handles, names, loc="center left", frameon=False, fontsize=9, handlelength=4.5
        )
        return figure

    svg = as_svg(make, "legend", f"Legend: {'; '.join(group.name for group in comparison.groups)}")
    return tag("div", svg, class_="legend")


def _run(run: Run, hides: str, shown: Mapping[str, str]) -> str:
    return tag(
        "section",
        tag("h2", escape(f"{run.label}: {run.id}" if run.label else run.id)),
        sections.summary(run),
        sections.rounds(run.rows),
        sections.clients(run),
        sections.messages(run),
        shown.get(run.id, ""),
        sections.privacy(run, hides),
        sections.configuration(run),
    )
