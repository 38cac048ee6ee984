"""Checking what clients say and send before it touches the model."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.mixers import Plan, Share, SmashedShape, Upload
from flwr_splitmix.server.intake.finite import FiniteCheck

_LEAST = {"batch-size": 1, "patches": 1, "width": 1, "prefix": 0, "num-examples": 1}

MUCH_MORE = 100
"""How many times the median a client's data set may be, to count in full."""

MOST = 2**31 - 1
"""Bound on every number that a client says of itself."""

LARGEST = 1e6
"""Bound on what crosses the cut: finite numbers far beyond it overflow in the server's model."""

NOT_FINITE = "uploaded NaN or infinite numbers"


class UploadError(ValueError):
    """A client's upload is not what its share of the plan asks for."""


def read_upload(
    reply: Mapping[str, Any],
    plan: Plan,
    client: int,
    num_classes: int,
    dtype: torch.dtype,
    table: Tensor | None = None,
    finite: FiniteCheck | None = None,
) -> Upload:
    """Check one client's reply to a step and return it as an upload.

    Parameters
    ----------
    table
        Labels of this client's examples, int64 (examples,), where the plan asks for ids.
    finite
        Looks for NaN and infinite numbers; None answers at once, wherever the tensors are.

    Raises
    ------
    UploadError
        If a tensor is missing or has the wrong shape or dtype, is not finite, or a label is no
        class; the sentence names what was expected.
    """
    shares = plan.shares(client)
    smashed, labels = reply.get("smashed"), reply.get("labels")
    if not isinstance(smashed, (list, tuple)) or len(smashed) != len(shares):
        raise UploadError(f"uploaded no list of {len(shares)} smashed tensors")
    finite = finite or FiniteCheck(waits=True)
    checked: list[Tensor | None] = []
    for tensor, share in zip(smashed, shares, strict=True):
        if (tensor is None) != (share is None):
            raise UploadError("uploaded smashed data for a pass that is not its own")
        if share is None:
            checked.append(None)
            continue
        _check_shape(tensor, share.upload_shape(plan.shape.size), dtype)
        passes = finite.passes(tensor)
        if passes is False:
            raise UploadError(NOT_FINITE)
        if passes:
            check_size(tensor)
        checked.append(finite.cleaned(client, tensor) if passes is None else tensor)
    return Upload(checked, _read_labels(labels, plan, shares, num_classes, dtype, table))


def _read_labels(
    labels: Any,
    plan: Plan,
    shares: Sequence[Share | None],
    num_classes: int,
    dtype: torch.dtype,
    table: Tensor | None,
) -> Tensor | Sequence[Tensor | None]:
    """Check labels of the kind that the plan asks for; ids are replaced by the labels."""
    kinds = {share.label_kind for share in shares if share is not None}
    batch = plan.shape.batch
    if "soft" in kinds:
        if not isinstance(labels, (list, tuple)) or len(labels) != len(shares):
            raise UploadError(f"uploaded no list of {len(shares)} soft labels")
        for soft, share in zip(labels, shares, strict=True):
            if (soft is None) != (share is None):
                raise UploadError("uploaded labels for a pass that is not its own")
            if share is not None:
                check_tensor(soft, (batch, num_classes), dtype)
                check_size(soft)
                if not share.labels_clamped:
                    continue
                if float(soft.min()) < 0 or float(soft.max()) > 1 + 1e-6:
                    raise UploadError("uploaded soft labels outside 0..1")
        return labels
    if "ids" in kinds:
        if table is None:
            raise UploadError("sends ids instead of labels, and the server has no labels for it")
        ids = _check_integers(labels, batch, len(table), "ids")
        return table[ids]
    return _check_integers(labels, batch, num_classes, "labels")


def read_test_upload(
    reply: Mapping[str, Any], shape: SmashedShape, num_classes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Check one client's encoded test examples: smashed data and labels.

    Raises
    ------
    UploadError
        As `read_upload` does.
    """
    smashed, labels = reply.get("smashed"), reply.get("labels")
    if not isinstance(smashed, (list, tuple)) or len(smashed) != 1:
        raise UploadError("uploaded no list of 1 smashed tensor")
    check_tensor(smashed[0], shape.size, dtype)
    check_size(smashed[0])
    return smashed[0], _check_integers(labels, shape.batch, num_classes, "labels")


def check_tensor(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise UploadError unless it is a finite tensor of that shape and dtype."""
    _check_shape(tensor, shape, dtype)
    if not FiniteCheck(waits=True).passes(tensor):
        raise UploadError(NOT_FINITE)


def check_size(tensor: Tensor) -> None:
    """Raise UploadError if a number is beyond `LARGEST`; waits for the tensor's device."""
    if not tensor.numel():
        return
    least, most = tensor.aminmax()
    if max(-float(least), float(most)) > LARGEST:
        raise UploadError(f"sent numbers beyond {LARGEST:g}, which would overflow in the model")


def _check_shape(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != shape:
        found = (
            f"{tuple(tensor.shape)} of {tensor.dtype}"
            if isinstance(tensor, Tensor)
            else type(tensor).__name__
        )
        raise UploadError(f"uploaded {found}, expected {shape} of {dtype}")


def _check_integers(values: Any, batch: int, limit: int, what: str) -> Tensor:
    if not isinstance(values, Tensor):
        raise UploadError(f"uploaded no {what}")
    if values.dtype != torch.int64 or tuple(values.shape) != (batch,):
        raise UploadError(
            f"{what} have shape {tuple(values.shape)} of {values.dtype}, expected "
            f"{(batch,)} of torch.int64"
        )
    if int(values.min()) < 0 or int(values.max()) >= limit:
        raise UploadError(
            f"{what} lie in {int(values.min())}..{int(values.max())}, allowed are 0..{limit - 1}"
        )
    return values


def agree_on_shape(
    clients: Clients, upper: nn.Module, num_classes: int = 0
) -> tuple[SmashedShape, int]:
    """Return the shape of every client's smashed data, and the mean number of full batches.

    The upper segment's `geometry` decides, or else the majority; clients that differ are left out
    of the round with a sentence. The shape also says the grid of the patches, where the upper
    segment's geometry does, and the number of classes.

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
    geometry = getattr(upper, "geometry", None)
    if geometry is not None:
        expected = (geometry.patches, geometry.width, geometry.prefix)
        for client, shape in shapes.items():
            if (shape.patches, shape.width, shape.prefix) != expected:
                clients.fail(client, _differs(shape, f"the upper segment expects {geometry}"))
    fitting = [shapes[c] for c in clients.alive]
    if not fitting:
        raise LinkError(f"no client fits the upper segment: {reasons(clients)}")
    chosen = Counter(fitting).most_common(1)[0][0]
    for client in clients.alive:
        if shapes[client] != chosen:
            clients.fail(client, _differs(shapes[client], f"most clients make {chosen.size}"))
    sizes = [int(clients.descriptions[c]["num-examples"]) for c in clients.alive]
    batches = [size // chosen.batch for size in plausible(sizes)]
    chosen = replace(chosen, grid=getattr(geometry, "grid", None), classes=num_classes)
    return chosen, max(1, round(sum(batches) / len(batches)))


def plausible(sizes: Sequence[int]) -> list[int]:
    """Return data set sizes, or other work, none above `MUCH_MORE` times the median.

    What a client says of its size decides how long everybody works: one that exaggerates must not
    keep the others busy for ever.
    """
    most = MUCH_MORE * max(1, statistics.median_low(sizes))  # of two, the smaller
    return [min(size, most) for size in sizes]


def check_number(key: str, value: object, least: int, most: int = MOST) -> None:
    """Check a whole number that a client says of itself.

    Raises
    ------
    UploadError
        If it is none, or not in least..most.
    """
    if isinstance(value, int) and value > most:
        raise UploadError(f"says that its {key} is more than {most}")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UploadError(
            f"says that its {key} is {_shown(value)}; it must be an integer of at least {least}"
        )


def _shown(value: object) -> str:
    """Say a value of a stranger in few characters; Python refuses to print very long integers."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"less than -{MOST}"
    simple = value is None or isinstance(value, (int, float, str))
    return repr(value)[:40] if simple else f"a {type(value).__name__}"


def _described_shape(description: Mapping[str, Any]) -> SmashedShape:
    for key, least in _LEAST.items():
        check_number(key, description.get(key), least)
    return SmashedShape(*(description[k] for k in ("batch-size", "patches", "width", "prefix")))


def _differs(shape: SmashedShape, expected: str) -> str:
    prefix = f"{shape.prefix} prefix tokens + " if shape.prefix else ""
    return (
        f"its smashed data are {shape.batch} x ({prefix}{shape.patches} patches) x {shape.width}, "
        f"{expected}"
    )


def reasons(clients: Clients) -> str:
    """Say why clients are missing, at most five of them."""
    items = sorted(clients.failures.items())
    listed = [f"client {client}: {reason}" for client, reason in items[:5]]
    return "; ".join(listed) + (f"; and {len(items) - 5} more" if len(items) > 5 else "")
