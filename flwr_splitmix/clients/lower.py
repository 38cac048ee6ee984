"""Descriptions of a client's segments and test sets, and loading of weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.batches import Example


def load_segment(segment: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    """Replace a lower segment's weights.

    Raises
    ------
    ClientError
        If names or shapes differ.
    """
    segment.load_state_dict(fitted(segment, arrays))


def fitted(segment: nn.Module, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a server's weights in the dtypes of this segment's, as they will be loaded.

    Checks must look at these: the same bytes are other numbers in another dtype.

    Raises
    ------
    ClientError
        If names or shapes differ.
    """
    own = segment.state_dict()
    check_fits(own, arrays, "the server's lower segment does not fit this client's")
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
    if arrays.keys() != own.keys() or any(
        tuple(arrays[k].shape) != tuple(own[k].shape) for k in own
    ):
        raise ClientError(f"{what}: it has {_shapes(arrays)}, here are {_shapes(own)}")


def describe_segment(segment: nn.Module, example: Tensor) -> dict[str, Any]:
    """Describe a lower segment's output for an example (1, ...).

    Returns
    -------
    "prefix", "patches" and "width" of its smashed data; for an edge that shuffles also "edge",
    its description as JSON text, and "trainable".

    Raises
    ------
    ClientError
        If the example or the smashed data have the wrong shape.
    """
    prefix, patches, width = _geometry(segment, example)
    description: dict[str, Any] = {"prefix": prefix, "patches": patches, "width": width}
    edge = getattr(segment, "edge", None)
    if edge is not None:
        description["edge"] = json.dumps(edge, sort_keys=True)
        description["trainable"] = any(p.requires_grad for p in segment.parameters())
    return description


def describe_tests(tests: Mapping[str, Dataset[Example] | None]) -> dict[str, int]:
    """Return the size of each kind of test set as "KIND-examples"; 0 if there is none."""
    return {
        f"{kind}-examples": 0 if data is None else len(data)  # type: ignore[arg-type]
        for kind, data in tests.items()
    }


def _geometry(segment: nn.Module, example: Tensor) -> tuple[int, int, int]:
    expected = getattr(segment, "input_shape", None)
    if expected is not None and tuple(example.shape[1:]) != tuple(expected):
        raise ClientError(
            f"images have shape {tuple(example.shape[1:])}, "
            f"the lower segment expects {tuple(expected)} (channels, height, width)"
        )
    geometry = getattr(segment, "geometry", None)
    if geometry is not None:
        return geometry.prefix, geometry.patches, geometry.width
    segment.eval()
    device = next((p.device for p in segment.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        smashed = segment(example.to(device))
    if not isinstance(smashed, Tensor):
        raise ClientError(
            f"a lower segment must return one tensor (batch, patches, width), this one returns a "
            f"{type(smashed).__name__}; return the tensor in it"
        )
    shape = tuple(smashed.shape)
    if len(shape) != 3:
        raise ClientError(f"smashed data must be (batch, patches, width), got shape {shape}")
    return 0, shape[1], shape[2]


def _shapes(arrays: Mapping[str, Tensor]) -> str:
    listed = [f"{name} {tuple(t.shape)}" for name, t in list(arrays.items())[:4]]
    return ", ".join(listed) + (", ..." if len(arrays) > 4 else "")
