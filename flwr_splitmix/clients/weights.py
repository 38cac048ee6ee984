"""Weights by name: whether they have shapes and fit, and how they leave a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.words import listed


class HasShape(Protocol):
    """A tensor, or an array of Flower's."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""


def check_shaped(name: str, segment: nn.Module) -> None:
    """Raise ClientError if weights or buffers of a segment have no shape yet."""
    for key, value in segment.state_dict(keep_vars=True).items():
        if is_lazy(value):
            raise ClientError(
                f"the {name}'s {key} has no shape yet (a lazy module): run one batch through the "
                f"{name} first"
            )


def without_bfloat16(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU, without a graph; bfloat16 as float32.

    Flower uses numpy arrays, and numpy has no bfloat16.
    """
    return {
        name: t.detach().cpu().float() if t.dtype == torch.bfloat16 else t.detach().cpu()
        for name, t in tensors.items()
    }


def check_fits(expected: Mapping[str, Tensor], arrays: Mapping[str, Tensor], subject: str) -> None:
    """Raise ClientError, beginning with `subject`, if names or shapes differ."""
    if wrong := differences(expected, arrays):
        raise ClientError(f"{subject}: {wrong}")


def differences(expected: Mapping[str, HasShape], arrays: Mapping[str, HasShape]) -> str:
    """Return, for a message, the names and shapes in which `arrays` ("it") differ; "" if none."""
    shapes = {name: tuple(t.shape) for name, t in expected.items()}
    array_shapes = {name: tuple(t.shape) for name, t in arrays.items()}
    kinds = {
        "it lacks": [f"{name} {shapes[name]}" for name in shapes if name not in array_shapes],
        "it also has": [
            f"{name} {array_shapes[name]}" for name in array_shapes if name not in shapes
        ],
        "it has": [
            f"{name} {array_shapes[name]} in place of {shapes[name]}"
            for name in shapes
            if array_shapes.get(name, shapes[name]) != shapes[name]
        ],
    }
    return "; ".join(f"{kind} {listed(names, most=3)}" for kind, names in kinds.items() if names)
