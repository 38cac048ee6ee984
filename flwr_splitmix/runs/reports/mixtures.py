"""Figures of the mixtures kept by a run: the clients of their patches, and their strength."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.reports.curves import COLOURS
from flwr_splitmix.runs.reports.markup import paragraph, tag
from flwr_splitmix.runs.reports.svg import panel
from flwr_splitmix.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pictures(runs: Sequence[Run]) -> dict[str, str]:
    """Return the HTML of each run's mixtures by run id; runs that kept none are missing.

    Raises
    ------
    RunError
        If no run has kept any, or matplotlib is not installed.
    """
    shown = {run.id: _section(run) for run in runs if run.mixtures}
    if not shown:
        raise RunError(
            "no run here has kept mixtures: give a run of the vision app keep-mixtures=4, say"
        )
    return shown


def _section(run: Run) -> str:
    round_mixtures = run.mixtures
    figures = [
        tag(
            "figure",
            panel(partial(draw, mixture), f"mixture-{run.id}-{index}", _in_words(mixture)),
            tag("figcaption", escape(_in_words(mixture))),
        )
        for index, mixture in enumerate(round_mixtures["mixtures"])
    ]
    return (
        "<h3>Mixtures</h3>"
        + paragraph(
            f"The first mixtures of round {round_mixtures['round']}, one sample each: in every "
            "patch the client that sent it; the larger its square, the larger the norm of the "
            "mixed smashed data there. A cross is a patch that no client sent."
        )
        + tag("div", *figures, class_="figures")
    )


def _in_words(mixture: dict[str, Any]) -> str:
    members = (f"client {m['client']} at ratio {m['lam']:.2f}" for m in mixture["members"])
    return f"Mixture of {', '.join(members)}"


def draw(mixture: dict[str, Any], axes: Axes) -> None:
    """Draw a mixture: one square per patch, in stripes if several clients sent it."""
    from matplotlib.patches import Rectangle

    rows, columns = mixture["rows"], mixture["columns"]
    norms = [float(norm) for norm in mixture["norms"]]
    largest = max(filter(math.isfinite, norms), default=0.0) or 1.0
    for patch in range(rows * columns):
        row, column = divmod(patch, columns)
        senders = [
            (index, member)
            for index, member in enumerate(mixture["members"])
            if member["patches"][patch]
        ]
        if not senders:
            axes.plot(column + 0.5, row + 0.5, marker="x", color="0.5", markersize=5)
            continue
        share = norms[patch] / largest if math.isfinite(norms[patch]) else 1.0
        side = 0.35 + 0.6 * share
        corner = (1 - side) / 2
        for place, (index, _) in enumerate(senders):
            width = side / len(senders)
            axes.add_patch(
                Rectangle(
                    (column + corner + place * width, row + corner),
                    width,
                    side,
                    facecolor=COLOURS[index % len(COLOURS)],
                    alpha=0.45,
                    linewidth=0,
                )
            )
        if columns <= 16:
            name = "+".join(str(member["client"]) for _, member in senders)
            axes.text(column + 0.5, row + 0.5, name, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
