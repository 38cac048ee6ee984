"""A frame's body: tensors in the safetensors format, named by their position.

Bodies are read with the safetensors package, but written here, because the package would copy every
number twice more; see docs/performance.md, "A step on SuperNodes", for the cost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that may be sent, by their names in the safetensors format."""

MAX_HEADER = 1 << 20
MAX_DIMENSIONS = 16

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LENGTH = 8
"""Bytes of the header's length field; the header is padded to a multiple of it."""


class BodyError(ValueError):
    """Bytes are not a valid body, or a tensor cannot be in one; the message contains no data."""


def write_body(tensors: Sequence[Tensor]) -> list[bytes | memoryview]:
    """Return a body in pieces; tensors on the CPU are not copied if contiguous.

    Raises
    ------
    BodyError
        If a tensor's dtype is not in `DTYPES`.
    """
    entries: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    end = 0
    for index, tensor in enumerate(tensors):
        if tensor.dtype not in _CODES:
            raise BodyError(f"tensors of {tensor.dtype} cannot travel; {_portable_dtypes()}")
        begin, end = end, end + tensor.nbytes
        entries[str(index)] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        if tensor.nbytes:
            numbers = tensor.detach().cpu().contiguous().reshape(-1)
            pieces.append(numbers.view(torch.uint8).numpy().data)
    if not entries:
        return []
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)
    return [len(header).to_bytes(_LENGTH, "little"), header, *pieces]


def read_body(body: bytes) -> list[Tensor]:
    """Return the tensors of a body, on the CPU, in their own memory.

    Raises
    ------
    BodyError
        If it is not a body as written by `write_body`. Memory is allocated only for bytes present.
    """
    if not body:
        return []
    if int.from_bytes(body[:_LENGTH], "little") > MAX_HEADER:
        raise BodyError("the body is not safetensors: its header is longer than allowed")
    try:
        named = load(body)
    # The package's message may quote the header. The other errors are raised for dtypes and shapes
    # that the format allows but torch does not have.
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, AssertionError):
        raise BodyError("the body is not safetensors that torch can read") from None
    if named.keys() != {str(index) for index in range(len(named))}:
        raise BodyError("the body's tensors must be named by their positions")
    return [_checked_tensor(named[str(index)]) for index in range(len(named))]


def _checked_tensor(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _CODES:
        raise BodyError(f"the body holds a dtype that may not travel; {_portable_dtypes()}")
    if tensor.dim() > MAX_DIMENSIONS:
        raise BodyError(f"a tensor of the body has more than {MAX_DIMENSIONS} dimensions")
    # torch cannot handle a bool whose byte is neither 0 nor 1.
    return tensor.view(torch.uint8).ne(0) if tensor.dtype == torch.bool else tensor


def _portable_dtypes() -> str:
    return f"these can: {', '.join(str(dtype).removeprefix('torch.') for dtype in _CODES)}"
