"""Figures as SVG within a page: in the colours of the page, light or dark, and as wide as it is."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from flwr_splitmix.runs.reports.curves import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#010203"
"""A colour that nothing else has: the page's own takes its place."""


def panel(draw: Callable[[Axes], Any], name: str, label: str) -> str:
    """Return a figure of one panel as an SVG element.

    Parameters
    ----------
    draw
        Draws into the panel.
    name
        Of the figure, unique in the page: its inner references are made from it.
    label
        What a reader who sees no pictures is told.
    """

    def make() -> Figure:
        figure = new_figure(4.4, 3.2)
        draw(figure.subplots())
        return figure

    return as_svg(make, name, label)


def as_svg(make: Callable[[], Figure], name: str, label: str) -> str:
    """Make a figure and return it as an SVG element; parameters as `panel`'s.

    Raises
    ------
    RunError
        If matplotlib is not installed.
    """
    new_figure(1, 1)  # says so if there is no matplotlib
    from matplotlib import rc_context

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    plain: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
    }
    picture = io.StringIO()
    plain |= dict.fromkeys((*inked, "grid.color", "legend.labelcolor"), _INK)
    with rc_context(plain):
        figure = make()
        figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    svg = picture.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = svg.replace(_INK, "currentColor")
    for index, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--line-{index})")
    # The page's script-free layout gives it its width; the viewBox its height.
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height|version|xmlns(:\w+)?)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(label)}">{_namespaced(rest, name)}'


def _namespaced(svg: str, name: str) -> str:
    """Prefix the ids of a figure: several figures of a page count theirs alike."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', svg)
    return svg.replace("url(#", f"url(#{name}-")
