"""Checks and description of a client's lower segment, and loading of its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flwr_splitmix.clients.client import ClientError, WrappedError
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.modules import check_module
from flwr_splitmix.segments.shape_errors import of_shapes, torchs_words
from flwr_splitmix.words import one_line, with_article

_RESHAPED = {
    2: "; features (batch, width) become one patch by .unsqueeze(1), or several by "
    ".unflatten(1, (patches, -1))",
    4: "; a CNN's maps (batch, width, rows, columns) become that by .flatten(2).mT",
}
"""What makes smashed data of so many dimensions right."""

_OF_DTYPES = re.compile(r"type|implemented for")
"""What torch's messages about dtypes have in common."""

_OF_WHOLE_NUMBERS = re.compile(r"Long|Int|Short|Byte|Char|Bool|long|\bint\b|unsigned|bool")
"""How they name dtypes of whole numbers."""


class Shaped(Protocol):
    """A tensor, or an array of Flower's."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""


def check_segment(segment: nn.Module) -> None:
    """Refuse a lower segment whose weights cannot be sent or kept.

    Raises
    ------
    TypeError
        If it is no module, or one without values.
    ClientError
        If some have no shape yet or are sparse, or if its state has entries that are no tensors.
    """
    check_module("segment", segment)
    check_shaped("lower segment", segment)
    state = segment.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ClientError(
                f"the lower segment's state_dict has {name}, {with_article(type(value).__name__)}; "
                "only tensors can be sent and kept: let get_extra_state return a tensor, or "
                "register a buffer"
            )
        if value.layout != torch.strided:
            raise ClientError(
                f"the lower segment's {name} is a sparse tensor, which cannot be sent: register "
                "its dense form (.to_dense()), or a buffer that need not be sent with "
                "persistent=False"
            )


def check_shaped(name: str, segment: nn.Module) -> None:
    """Raise ClientError if weights or buffers of a segment have no shape yet."""
    for key, value in segment.state_dict(keep_vars=True).items():
        if is_lazy(value):
            raise ClientError(
                f"the {name}'s {key} has no shape yet (a lazy module): run one batch through the "
                f"{name} first"
            )


@contextmanager
def explained(
    segment: nn.Module, inputs: Tensor, what: str = "inputs", name: str = "lower segment"
) -> Iterator[None]:
    """Name the dtypes or the shape if a forward pass fails on them.

    Parameters
    ----------
    what, name
        What the inputs and the segment are called.

    Raises
    ------
    ClientError
        If it fails and the dtypes differ (a segment may convert its inputs itself), or on the
        inputs' shape. Where the text may hold data, it is a `WrappedError`.
    """
    _check_shape(segment, inputs, name)
    try:
        yield
    except (RuntimeError, TypeError, AssertionError) as error:
        dtypes = (p.dtype for p in segment.parameters() if p.dtype.is_floating_point)
        weights = next(dtypes, inputs.dtype)
        differ = weights != inputs.dtype and _OF_DTYPES.search(str(error))
        if not inputs.is_floating_point():  # token ids fit, whatever else does not
            differ = differ and _OF_WHOLE_NUMBERS.search(str(error))
        if not differ:
            if not of_shapes(error):
                raise
            refused = f"{what} {tuple(inputs.shape[1:])} do not fit the {name}"
            if said := torchs_words(error):
                raise ClientError(f"{refused}: {said}") from error
            raise WrappedError(refused, f"{refused}: {one_line(str(error))}") from error
        short = str(weights).removeprefix("torch.")
        convert = ".float()" if weights == torch.float32 else f".to({weights})"
        raise ClientError(
            f"{what} are {str(inputs.dtype).removeprefix('torch.')}, the {name} {short}: "
            f"convert them in the data set with {convert}"
        ) from error


def check_described(smashed: Tensor, described: tuple[int, int]) -> None:
    """Refuse smashed data (b, tokens, width) of another size than the client has described.

    Raises
    ------
    ClientError
        If tokens or width differ.
    """
    here = tuple(smashed.shape[1:])
    if here != described:
        raise ClientError(
            f"the smashed data of a batch are (batch, {', '.join(map(str, here))}), those of its "
            f"first example, or its segment's geometry, (batch, {described[0]}, {described[1]}): "
            "give the inputs of all batches, of all clients, one size, series and texts by padding "
            "them to one length"
        )


def load_segment(
    segment: nn.Module, arrays: Mapping[str, Tensor], what: str = "the server's lower segment"
) -> None:
    """Replace a lower segment's weights.

    Raises
    ------
    ClientError
        If names or shapes differ; the message begins with `what`.
    """
    segment.load_state_dict(fitted(segment, arrays, what))


def fitted(
    segment: nn.Module, arrays: Mapping[str, Tensor], what: str = "the server's lower segment"
) -> dict[str, Tensor]:
    """Return a server's, or kept, weights in the dtypes of this segment's, as they will be loaded.

    Checks must look at these: the same bytes are other numbers in another dtype.

    Raises
    ------
    ClientError
        If names or shapes differ; the message begins with `what`.
    """
    own = segment.state_dict()
    check_fits(own, arrays, f"{what} does not fit this client's")
    return {k: arrays[k].to(own[k].dtype) for k in own}


def without_bfloat16(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU, without a graph; bfloat16 as float32.

    Flower uses numpy arrays, and numpy has no bfloat16.
    """
    return {
        name: t.detach().cpu().float() if t.dtype == torch.bfloat16 else t.detach().cpu()
        for name, t in tensors.items()
    }


def check_fits(own: Mapping[str, Tensor], arrays: Mapping[str, Tensor], what: str) -> None:
    """Raise ClientError, beginning with `what`, if names or shapes differ."""
    if wrong := differences(own, arrays):
        raise ClientError(f"{what}: {wrong}")


def differences(own: Mapping[str, Shaped], arrays: Mapping[str, Shaped]) -> str:
    """Return, for a message, in which names and shapes `arrays` ("it") differ; "" if in none."""
    shapes = {name: tuple(t.shape) for name, t in own.items()}
    given = {name: tuple(t.shape) for name, t in arrays.items()}
    kinds = {
        "it lacks": [f"{name} {shapes[name]}" for name in shapes if name not in given],
        "it also has": [f"{name} {given[name]}" for name in given if name not in shapes],
        "it has": [
            f"{name} {given[name]} in place of {shapes[name]}"
            for name in shapes
            if given.get(name, shapes[name]) != shapes[name]
        ],
    }
    return "; ".join(f"{kind} {_some(names)}" for kind, names in kinds.items() if names)


def _some(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def describe_segment(segment: nn.Module, example: Tensor) -> dict[str, Any]:
    """Describe a lower segment's output for an example or two (b, ...).

    Returns
    -------
    "prefix", "patches" and "width" of its smashed data; "grid-columns" if its geometry says in how
    many columns the patches lie; for an edge that shuffles also "edge", its description as JSON
    text, and "trainable".

    Raises
    ------
    ClientError
        If the example or the smashed data have the wrong shape.
    """
    geometry = _geometry(segment, example)
    description: dict[str, Any] = {
        "prefix": geometry.prefix,
        "patches": geometry.patches,
        "width": geometry.width,
    }
    if geometry.grid is not None:
        description["grid-columns"] = geometry.grid[1]
    edge = getattr(segment, "edge", None)
    if isinstance(edge, Mapping):  # other modules may mean something else by these names
        description["edge"] = json.dumps(edge, sort_keys=True)
        description["trainable"] = any(p.requires_grad for p in segment.parameters())
    return description


def _geometry(segment: nn.Module, example: Tensor) -> Geometry:
    _check_shape(segment, example)
    geometry = getattr(segment, "geometry", None)
    if isinstance(geometry, Geometry):
        return geometry
    segment.eval()
    device = next((p.device for p in segment.parameters()), torch.device("cpu"))
    with torch.no_grad(), explained(segment, example):  # what a segment caches may need a graph
        smashed = segment(example.to(device))
    if not isinstance(smashed, Tensor):
        raise ClientError(
            f"a lower segment must return one tensor (batch, patches, width), this one returns a "
            f"{type(smashed).__name__}; return the tensor in it"
        )
    shape = tuple(smashed.shape)
    if len(shape) != 3:
        raise ClientError(
            f"smashed data must be (batch, patches, width), got shape {shape}"
            + _RESHAPED.get(len(shape), "")
        )
    return Geometry(shape[1], shape[2])


def _check_shape(segment: nn.Module, inputs: Tensor, name: str = "lower segment") -> None:
    """Raise ClientError if inputs (b, ...) have another shape than a segment says it expects."""
    expected = getattr(segment, "input_shape", None)
    if _is_shape(expected) and tuple(inputs.shape[1:]) != tuple(expected):
        raise ClientError(
            f"images have shape {tuple(inputs.shape[1:])}, "
            f"the {name} expects {tuple(expected)} (channels, height, width)"
        )


def _is_shape(value: object) -> TypeGuard[Sequence[int]]:
    """Return whether a value is a shape of inputs (channels, height, width)."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 3
        and all(isinstance(length, int) for length in value)
    )
