"""Figures as inline SVG, in the page's colours (light or dark) and at its width."""

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
"""A placeholder colour that nothing else uses; it is replaced by the page's text colour."""


def panel(draw: Callable[[Axes], Any], name: str, label: str) -> str:
    """Return a figure with one panel as an SVG element.

    Parameters
    ----------
    draw
        Draws into the panel.
    name
        Name of the figure, unique in the page: the prefix of its element ids.
    label
        Text for screen readers.
    """

    def make() -> Figure:
        figure = new_figure(4.4, 3.2)
        draw(figure.subplots())
        return figure

    return as_svg(make, name, label)


def as_svg(make: Callable[[], Figure], name: str, label: str) -> str:
    """Make a figure and return it as an SVG element; parameters as for `panel`.

    Raises
    ------
    RunError
        If matplotlib is not installed.
    """
    new_figure(1, 1)  # raises RunError if there is no matplotlib
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
    # The page's layout gives the width, the viewBox the height.
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height|version|xmlns(:\w+)?)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(label)}">{_namespaced(rest, name)}'


def _namespaced(svg: str, name: str) -> str:
    """Prefix the ids of a figure, which would clash with those of other figures in the page."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', svg)
    return svg.replace("url(#", f"url(#{name}-")
