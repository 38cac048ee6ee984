"""Checks of a client's lower segment, and its description."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.explained import check_input_shape, explained
from flwr_splitmix.clients.weights import check_shaped
from flwr_splitmix.description import SegmentDescription
from flwr_splitmix.errors import FAULTS
from flwr_splitmix.segments.buffers import restored_buffers
from flwr_splitmix.segments.geometry import Geometry, geometry_of
from flwr_splitmix.segments.modules import check_module
from flwr_splitmix.words import counted, with_article

_RESHAPED = {
    2: "; features (batch, width) become one patch by .unsqueeze(1), or several by "
    ".unflatten(1, (patches, -1))",
    4: "; a CNN's maps (batch, width, rows, columns) become that by .flatten(2).mT",
}
"""The remedy for smashed data with this number of dimensions."""


def check_segment(segment: nn.Module) -> None:
    """Refuse a lower segment whose weights cannot be sent or kept.

    Raises
    ------
    TypeError
        If it is not a module, or one without values, or if its `geometry` is a mere tuple.
    ClientError
        If some have no shape yet, are sparse, quantized or of float8, or if its state has entries
        that are not tensors.
    """
    check_module("segment", segment)
    geometry_of("segment", segment)
    check_shaped("lower segment", segment)
    state = segment.state_dict(keep_vars=True)
    is_quantized = any(".quantized." in f"{type(part).__module__}." for part in segment.modules())
    for name, value in state.items():
        if is_quantized and (not isinstance(value, Tensor) or value.is_quantized):
            raise ClientError(
                f"the lower segment's {name} is of a quantized module, which is neither sent nor "
                "trained: take the modules with floating weights, and quantize what is exported"
            )
        if not isinstance(value, Tensor):
            raise ClientError(
                f"the lower segment's state_dict has {name}, {with_article(type(value).__name__)}; "
                "only tensors can be sent and kept: let get_extra_state return a tensor, or "
                "register a buffer"
            )
        if "float8" in str(value.dtype):
            raise ClientError(
                f"the lower segment's {name} is of {value.dtype}, which NumPy lacks and cannot be "
                "sent: register it in float32, or as a buffer with persistent=False"
            )
        if value.layout != torch.strided:
            raise ClientError(
                f"the lower segment's {name} is a sparse tensor, which cannot be sent: register "
                "its dense form (.to_dense()), or a buffer that need not be sent with "
                "persistent=False"
            )


def check_smashed(smashed: object, examples: int) -> Tensor:
    """Return what a lower segment made of a number of examples, if it is smashed data of so many.

    Raises
    ------
    ClientError
        If it is not a tensor (examples, tokens, width).
    """
    if not isinstance(smashed, Tensor):
        raise ClientError(
            f"a lower segment must return one tensor (batch, patches, width), this one returns a "
            f"{type(smashed).__name__}; return the tensor in it"
        )
    shape = tuple(smashed.shape)
    if shape and shape[0] != examples:
        raise ClientError(
            f"the lower segment returned {counted(shape[0], 'row')} for "
            f"{counted(examples, 'example')}; the batch must be the first dimension: torch's "
            "recurrent and attention layers need batch_first=True"
        )
    if len(shape) != 3:
        raise ClientError(
            f"smashed data must be (batch, patches, width), got shape {shape}"
            + _RESHAPED.get(len(shape), "")
        )
    return smashed


def check_described(
    segment: nn.Module, smashed: Tensor, described: tuple[int, int], inputs: Tensor
) -> None:
    """Refuse smashed data (b, tokens, width) of another size than the client has described.

    Parameters
    ----------
    inputs
        The batch that they were made from in training mode, (b, ...).

    Raises
    ------
    ClientError
        If tokens or width differ; if the segment has a geometry, this may be wrong, else the
        segment's output may have another size in evaluation.
    """
    size = tuple(smashed.shape[1:])
    if size == described:
        return
    if _evaluated_size(segment, inputs) == described:
        raise ClientError(
            f"the lower segment's output is (batch, {size[0]}, {size[1]}) in training and (batch, "
            f"{described[0]}, {described[1]}) in evaluation; it must have one size: set patches "
            "that are dropped in training to zero, in place of leaving them out"
        )
    before, wrong = "those of its first example", ""
    if geometry_of("segment", segment) is not None:
        before = "those of its segment's geometry"
        wrong = ": correct the geometry, or leave it out. If it fits other batches"
    raise ClientError(
        f"the smashed data of a batch are (batch, {size[0]}, {size[1]}), {before} "
        f"(batch, {described[0]}, {described[1]}){wrong}: give the inputs of all batches, of all "
        "clients, one size, series and texts by padding them to one length"
    )


def _evaluated_size(segment: nn.Module, inputs: Tensor) -> tuple[int, ...]:
    """Return tokens and width of a segment's output in evaluation; () if there is none."""
    training = segment.training
    try:
        return tuple(check_smashed(_described(segment.eval(), inputs), len(inputs)).shape[1:])
    except FAULTS:  # a user's module may raise anything; the caller says what was wrong before
        return ()
    finally:
        segment.train(training)


def describe_segment(segment: nn.Module, example: Tensor) -> SegmentDescription:
    """Describe a lower segment's output for an example or two (b, ...).

    Raises
    ------
    ClientError
        If the example or the smashed data have the wrong shape.
    """
    geometry = _geometry(segment, example)
    lower = geometry.positions == "lower"  # what a trial finds does not deny it
    edge = getattr(segment, "edge", None)
    if not isinstance(edge, Mapping):  # other modules may mean something else by this name
        edge = None
    trains = any(parameter.requires_grad for parameter in segment.parameters())
    return SegmentDescription(
        prefix=geometry.prefix,
        patches=geometry.patches,
        width=geometry.width,
        grid_columns=None if geometry.grid is None else geometry.grid[1],
        positions="lower" if lower else "",
        edge=None if edge is None else json.dumps(dict(edge), sort_keys=True),
        trainable=None if edge is None else trains,
    )


def _geometry(segment: nn.Module, example: Tensor) -> Geometry:
    check_input_shape(segment, example)
    if (geometry := geometry_of("segment", segment)) is not None:
        return geometry
    smashed = _described(segment.eval(), example)
    _, patches, width = check_smashed(smashed, len(example)).shape
    return Geometry(patches, width)


def _described(segment: nn.Module, example: Tensor) -> object:
    """Return a segment's output for an example or two, without a trace in its buffers."""
    device = next((p.device for p in segment.parameters()), torch.device("cpu"))
    no_graph = torch.no_grad()  # what a segment caches may need one later
    with no_graph, restored_buffers(segment), explained(segment, example):
        return segment(example.to(device))
