"""Pictures as png, pdf or svg: two panels, and reconstructions by attacks."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flwr_splitmix.cli.terminal import write_output
from flwr_splitmix.extras import how_to_install
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.reports.curves import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flwr_splitmix.attacks.gallery import Reconstructions

EXTENSIONS = (".pdf", ".png", ".svg")


def check_name(output: Path) -> None:
    """Raise RunError if a picture's name has no known suffix."""
    if output.suffix.lower() not in EXTENSIONS:
        raise RunError(f"cannot write {output}: a plot's name ends in {', '.join(EXTENSIONS)}")


def two_panels(draw: Callable[[Axes, Axes], Any]) -> Figure:
    """Return a figure with two panels; linear x axes show only whole numbers.

    Raises
    ------
    RunError
        If matplotlib is not installed.
    """
    figure = new_figure(10, 4.2)
    from matplotlib.ticker import MaxNLocator

    left, right = figure.subplots(1, 2)
    draw(left, right)
    for axes in (left, right):
        if axes.get_xscale() == "linear":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save(figure: Figure, output: Path) -> None:
    """Write a figure.

    Raises
    ------
    RunError
        If its name has no known suffix, or the file cannot be written.
    """
    check_name(output)
    picture = io.BytesIO()
    figure.savefig(picture, format=output.suffix.lower()[1:], dpi=150)
    write_output(output, picture.getvalue())


def draw_reconstructions(shown: Sequence[Sequence[Reconstructions]], output: Path) -> None:
    """Write a picture of attacks' reconstructions, one method per row.

    Raises
    ------
    RunError
        If there is nothing to show, matplotlib is missing, or the file cannot be written.
    """
    from flwr_splitmix.attacks.gallery import draw_gallery

    check_name(output)
    try:
        figure = draw_gallery(shown)
    except ValueError as error:
        raise RunError(str(error)) from error
    except ImportError:
        raise RunError(f"pictures need matplotlib: {how_to_install('report')}") from None
    save(figure, output)
    typer.echo(f"wrote {output}", err=True)
