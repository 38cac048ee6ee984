"""Errors of a forward pass, in words of the inputs that do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError, WrappedError
from flwr_splitmix.segments.shape_errors import of_shapes, torchs_words
from flwr_splitmix.words import one_line

_OF_DTYPES = re.compile(r"type|implemented for")
"""The common part of torch's messages about dtypes."""

_OF_WHOLE_NUMBERS = re.compile(r"Long|Int|Short|Byte|Char|Bool|long|\bint\b|unsigned|bool")
"""How they name dtypes of whole numbers."""


@contextmanager
def explained(
    segment: nn.Module, inputs: Tensor, subject: str = "inputs", name: str = "lower segment"
) -> Iterator[None]:
    """Name the dtypes or the shape if a forward pass fails on them.

    Parameters
    ----------
    subject, name
        Names of the inputs and the segment, for messages.

    Raises
    ------
    ClientError
        If it fails and the dtypes differ (a segment may convert its inputs itself), on the
        inputs' shape, or because a buffer changes its size. Where the text may hold data, it is a
        `WrappedError`.
    """
    check_input_shape(segment, inputs, name)
    try:
        yield
    except (RuntimeError, TypeError, AssertionError) as error:
        if "resize storage" in str(error):  # weights that leave share their memory with NumPy
            raise ClientError(
                f"the {name} changes the size of a buffer: run one batch through the {name} "
                "before it is given to a client, as observers of quantization need it, or give the "
                "buffer a fixed size"
            ) from error
        dtypes = (p.dtype for p in segment.parameters() if p.dtype.is_floating_point)
        weights = next(dtypes, inputs.dtype)
        differ = weights != inputs.dtype and bool(_OF_DTYPES.search(str(error)))
        if inputs.is_complex():
            differ = differ and not any(p.is_complex() for p in segment.parameters())
        elif not inputs.is_floating_point():  # token ids fit, whatever else does not
            differ = differ and bool(_OF_WHOLE_NUMBERS.search(str(error)))
        if not differ:
            if not of_shapes(error):
                raise
            refused = f"{subject} {tuple(inputs.shape[1:])} do not fit the {name}"
            if reason := torchs_words(error):
                raise ClientError(f"{refused}: {reason}") from error
            raise WrappedError(refused, f"{refused}: {one_line(str(error))}") from error
        short = str(weights).removeprefix("torch.")
        if inputs.is_complex():
            raise ClientError(
                f"{subject} are {str(inputs.dtype).removeprefix('torch.')}, the {name} {short}: "
                "convert them in the data set with torch.view_as_real, which adds a dimension of "
                "two, or with .abs()"
            ) from error
        convert = ".float()" if weights == torch.float32 else f".to({weights})"
        raise ClientError(
            f"{subject} are {str(inputs.dtype).removeprefix('torch.')}, the {name} {short}: "
            f"convert them in the data set with {convert}"
        ) from error


def check_input_shape(segment: nn.Module, inputs: Tensor, name: str = "lower segment") -> None:
    """Raise ClientError if inputs (b, ...) have another shape than a segment expects."""
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
