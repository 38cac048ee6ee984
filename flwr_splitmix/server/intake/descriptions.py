"""What clients say of themselves: checked, and agreed on for a round, in both shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.server.intake.checks import (
    MAX_BATCH,
    UploadError,
    check_client_shape,
    check_number,
    far_larger,
    mean_batches,
    most_common,
)
from flwr_splitmix.server.naming import reasons
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import counted

MAX_EXAMPLES = 2**20
"""Most examples in a client's batch: a full batch of vectors may have many."""

MAX_SMASHED = 2**30
"""Most numbers in the smashed data of a client's batch, 4 GiB of float32."""

MORE_EXAMPLES = 16
"""A client's batch may have this many times the examples of the median client's.

The trunk's memory grows with it, and one client must not end the run for all.
"""

ENOUGH_EXAMPLES = 256
"""A batch of so many examples is no reason to leave a client out, however few the others have."""

MAX_CALIBRATION = 100_000
"""Most calibration exchanges of a client, for which the others wait."""

_SPLIT_RANGES = {
    "batch-size": (1, MAX_EXAMPLES),
    "patches": (1, MAX_COUNT),
    "width": (1, MAX_COUNT),
    "prefix": (0, MAX_COUNT),
    "num-examples": (1, MAX_COUNT),
}

_USHAPE_RANGES = {
    "num-examples": (1, MAX_COUNT),
    "batch-size": (1, MAX_BATCH),
    "width": (1, MAX_COUNT),
    "calibration-steps": (0, MAX_CALIBRATION),
}


def agree_on_shape(
    clients: Clients,
    geometry: Geometry | None,
    num_classes: int = 0,
    takes: Callable[[SmashedShape], bool] | None = None,
) -> tuple[SmashedShape, int]:
    """Return the shape of every client's smashed data, and the mean number of full batches.

    The upper segment's geometry decides, or what most clients make if it is None, and of several
    shapes as frequent the smallest; clients that differ are left out of the round with a message.
    The shape includes the number of classes, and the grid of patches: the upper segment's, or else
    the one that most clients name, if any do.

    Parameters
    ----------
    takes
        Whether the upper segment takes smashed data of a shape. Asked only without a geometry, and
        if clients differ: then shapes that it does not take decide nothing.

    Raises
    ------
    LinkError
        If no client fits.
    """
    shapes = {}
    for client in clients.alive:
        try:
            shapes[client] = _described_shape(clients.descriptions[client])
        except UploadError as error:
            clients.fail(client, str(error))
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
            clients.fail(client, _differs(shapes[client], others))
    sizes = [int(clients.descriptions[c]["num-examples"]) for c in clients.alive]
    batches = mean_batches(sizes, [chosen.batch] * len(sizes))
    grid = geometry.grid if geometry is not None and geometry.grid else _grid_of_most(clients)
    return replace(chosen, classes=num_classes, grid=grid), batches


def _chosen(
    shapes: Sequence[SmashedShape], takes: Callable[[SmashedShape], bool] | None
) -> SmashedShape:
    """Return what most clients make, of what the upper segment takes, if it takes any of it."""
    left = list(shapes)
    if takes is not None and len({replace(shape, batch=1) for shape in shapes}) > 1:
        while left:
            chosen = most_common(left, _numbers)
            if takes(chosen):
                return chosen
            left = [shape for shape in left if replace(shape, batch=chosen.batch) != chosen]
    return most_common(shapes, _numbers)  # if it does not fit, training says how


def _numbers(shape: SmashedShape) -> int:
    return math.prod(shape.size)


def _described_shape(description: Mapping[str, Any]) -> SmashedShape:
    check_client_shape(description, "patches", "calibration-steps", "SplitClient")
    for key, (least, most) in _SPLIT_RANGES.items():
        check_number(key, description.get(key), least, most)
    shape = SmashedShape(*(description[k] for k in ("batch-size", "patches", "width", "prefix")))
    if (numbers := math.prod(shape.size)) > MAX_SMASHED:
        raise UploadError(_differs(shape, f"or {numbers} numbers; allowed are {MAX_SMASHED}"))
    if (columns := description.get("grid-columns")) is not None:
        check_number("grid-columns", columns, 1, shape.patches)
        if shape.patches % columns:
            raise UploadError(f"says that its {shape.patches} patches form {columns} columns")
    return shape


def _grid_of_most(clients: Clients) -> tuple[int, int] | None:
    """Return the grid (rows, columns) that most of those name that name one; None if none does."""
    said = [clients.descriptions[client] for client in clients.alive]
    columns = [each["grid-columns"] for each in said if each.get("grid-columns") is not None]
    if not columns:
        return None
    chosen = most_common(columns, int)
    return said[0]["patches"] // chosen, chosen


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
        d of the trunk; None uses what most clients report, and the smallest of several reported as
        often.

    Raises
    ------
    LinkError
        If no client fits.
    """
    for client in clients.alive:
        said = clients.descriptions[client]
        try:
            check_client_shape(said, "calibration-steps", "patches", "UShapeClient")
            for key, (least, most) in _USHAPE_RANGES.items():
                check_number(key, said.get(key), least, most)
        except UploadError as error:
            clients.fail(client, str(error))
    widths = [clients.descriptions[c]["width"] for c in clients.alive]
    expected = width or (most_common(widths, int) if widths else 0)
    for client in clients.alive:
        if (own := clients.descriptions[client]["width"]) != expected:
            clients.fail(client, f"its hidden states have width {own}, the trunk's {expected}")
    sizes = {c: int(clients.descriptions[c]["batch-size"]) for c in clients.alive}
    for client, usual in far_larger(sizes, MORE_EXAMPLES, least=ENOUGH_EXAMPLES).items():
        clients.fail(
            client,
            f"its batch-size is {sizes[client]}, more than {MORE_EXAMPLES} times the median "
            f"client's {usual}, and the trunk's memory is for all: give clients batches of similar "
            "size",
        )
    if not clients.alive:
        raise LinkError(f"no client fits the trunk: {reasons(clients)}")
    known = [clients.descriptions[c] for c in clients.alive]
    return mean_batches(
        [int(said["num-examples"]) for said in known], [int(said["batch-size"]) for said in known]
    )


def check_hiding(clients: Clients, hiding: type[Hiding], strategy: str) -> None:
    """Leave clients out of the round that do not say that they hide data as the strategy needs.

    It finds clients that were made wrongly; one that lies is not found, and harms only itself.

    Parameters
    ----------
    hiding
        The strategy's; `Hiding` itself promises nothing, so clients may hide in any way.
    strategy
        Name of the strategy, for the reason.
    """
    if hiding is Hiding:
        return
    for client in clients.alive:
        said = clients.descriptions[client].get("hiding")
        if not isinstance(said, str) or hiding.__name__ not in said.split():
            clients.fail(
                client,
                f"its data are not hidden by {hiding.__name__}, as {strategy} promises; make it "
                f"with UShapeClient(..., hiding={hiding.__name__}(...))",
            )
