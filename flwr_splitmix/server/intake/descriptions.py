"""Clients' descriptions of themselves: checked, and agreed on for a round, in both shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from flwr_splitmix.description import (
    Description,
    SegmentDescription,
    SplitDescription,
    UShapeDescription,
)
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.links.link import Shape
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.server.intake.checks import (
    far_larger,
    mean_batches,
    most_common,
)
from flwr_splitmix.server.naming import reasons
from flwr_splitmix.words import counted

MAX_SMASHED = 2**30
"""Most numbers in the smashed data of a client's batch, 4 GiB of float32."""

MORE_EXAMPLES = 16
"""A client's batch may have this many times the examples of the median client's.

The trunk's memory grows with it, and one client must not end the run for all.
"""

ENOUGH_EXAMPLES = 256
"""A batch of so many examples is no reason to leave a client out, however few the others have."""


def agree_on_shape(
    clients: Clients,
    geometry: Geometry | None,
    num_classes: int = 0,
    takes: Callable[[SmashedShape], bool] | None = None,
) -> tuple[SmashedShape, int]:
    """Return the shape of every client's smashed data, and the mean number of full batches.

    The upper segment's geometry decides; if it is None, the shape of most clients, and of several
    as frequent the smallest. Clients that differ are left out of the round with a message. The
    shape includes the number of classes, and the grid of patches: the upper segment's, or otherwise
    the one that most clients name, if any do.

    Parameters
    ----------
    takes
        Whether the upper segment takes smashed data of a shape. It is called only without a
        geometry, and if clients differ: then shapes that it does not take decide nothing.

    Raises
    ------
    LinkError
        If no client fits.
    """
    descriptions = _of_shape(clients, SplitDescription, "SplitClient")
    shapes = {client: _shape(description) for client, description in descriptions.items()}
    for client, shape in shapes.items():
        if (numbers := math.prod(shape.size)) > MAX_SMASHED:
            allowed = f"or {numbers} numbers; the most is {MAX_SMASHED}"
            clients.fail(client, _differs(shape, allowed))
    if geometry is not None:
        expected = (geometry.patches, geometry.width, geometry.prefix)
        for client, shape in shapes.items():
            if (shape.patches, shape.width, shape.prefix) != expected:
                clients.fail(client, _differs(shape, f"the upper segment expects {geometry}"))
    fitting = [shapes[c] for c in clients.alive]
    if not fitting:
        raise LinkError(f"no client fits the upper segment: {reasons(clients)}")
    chosen = _chosen(fitting, takes if geometry is None else None)
    most = 2 * fitting.count(chosen) > len(fitting)
    for client in clients.alive:
        if shapes[client] != chosen:
            others = f"{'most clients' if most else 'others'} make {chosen.size}"
            if shapes[client].batch != chosen.batch:
                others += f": give all of them one batch_size, here {chosen.batch}"
            else:
                others += ": give all of them one lower segment, and inputs of one size"
            clients.fail(client, _differs(shapes[client], others))
    sizes = [descriptions[client].num_examples for client in clients.alive]
    batches = mean_batches(sizes, [chosen.batch] * len(sizes))
    grid = geometry.grid if geometry is not None and geometry.grid else None
    grid = grid or _grid_of_most([descriptions[client].segment for client in clients.alive])
    return replace(chosen, classes=num_classes, grid=grid), batches


def _chosen(
    shapes: Sequence[SmashedShape], takes: Callable[[SmashedShape], bool] | None
) -> SmashedShape:
    """Return the most common shape, if possible among those that the upper segment takes."""
    candidates = list(shapes)
    if takes is not None and len({replace(shape, batch=1) for shape in shapes}) > 1:
        while candidates:
            chosen = most_common(candidates, _numbers)
            if takes(chosen):
                return chosen
            candidates = [
                shape for shape in candidates if replace(shape, batch=chosen.batch) != chosen
            ]
    return most_common(shapes, _numbers)  # if it does not fit, training reports it


def _numbers(shape: SmashedShape) -> int:
    return math.prod(shape.size)


def _of_shape(clients: Clients, shape: type[Shape], needed: str) -> dict[int, Shape]:
    """Return the descriptions of a shape; clients of others are left out of the round."""
    descriptions = clients.described(shape)
    for client in clients.alive:
        if client not in descriptions:
            which = "neither" if type(clients.descriptions[client]) is Description else "the other"
            clients.fail(client, f"it is a client of {which} shape; this strategy needs a {needed}")
    return descriptions


def _shape(description: SplitDescription) -> SmashedShape:
    segment = description.segment
    return SmashedShape(description.batch_size, segment.patches, segment.width, segment.prefix)


def _grid_of_most(segments: Sequence[SegmentDescription]) -> tuple[int, int] | None:
    """Return the most common grid (rows, columns) among those named; None if none is named.

    All have the same number of patches.
    """
    columns = [one.grid_columns for one in segments if one.grid_columns is not None]
    if not columns:
        return None
    chosen = most_common(columns, int)
    return segments[0].patches // chosen, chosen


def _differs(shape: SmashedShape, expected: str) -> str:
    prefix = f"{counted(shape.prefix, 'prefix token')} + " if shape.prefix else ""
    return (
        f"its smashed data are {shape.batch} x ({prefix}{counted(shape.patches, 'patch')}) x "
        f"{shape.width}, {expected}"
    )


def agree_on_batches(clients: Clients, width: int | None) -> int:
    """Return the mean number of full batches; clients that do not fit are left out of the round.

    Parameters
    ----------
    width
        d of the trunk; None uses the width that most clients report, and the smallest of several
        reported as often.

    Raises
    ------
    LinkError
        If no client fits.
    """
    descriptions = _of_shape(clients, UShapeDescription, "UShapeClient")
    widths = [descriptions[client].width for client in clients.alive]
    expected = width or (most_common(widths, int) if widths else 0)
    for client in clients.alive:
        if (client_width := descriptions[client].width) != expected:
            clients.fail(
                client, f"its hidden states have width {client_width}, the trunk's {expected}"
            )
    sizes = {client: descriptions[client].batch_size for client in clients.alive}
    for client, usual in far_larger(sizes, MORE_EXAMPLES, least=ENOUGH_EXAMPLES).items():
        clients.fail(
            client,
            f"its batch-size is {sizes[client]}, more than {MORE_EXAMPLES} times the median "
            f"client's {usual}, and the trunk's memory is for all: give clients batches of similar "
            "size",
        )
    if not clients.alive:
        raise LinkError(f"no client fits the trunk: {reasons(clients)}")
    remaining = [descriptions[client] for client in clients.alive]
    return mean_batches(
        [description.num_examples for description in remaining],
        [description.batch_size for description in remaining],
    )


def check_hiding(clients: Clients, hiding: type[Hiding], strategy: str) -> None:
    """Leave out clients that do not report to hide data as the strategy needs.

    This finds clients that were made wrongly; one that lies is not found, and harms only itself.

    Parameters
    ----------
    hiding
        The strategy's; `Hiding` itself promises nothing, so clients may hide in any way.
    strategy
        Name of the strategy, for the reason.
    """
    if hiding is Hiding:
        return
    for client, description in clients.described(UShapeDescription).items():
        if hiding.__name__ not in description.hiding.split():
            clients.fail(
                client,
                f"its data are not hidden by {hiding.__name__}, as {strategy} promises; make it "
                f"with UShapeClient(..., hiding={hiding.__name__}(...))",
            )
