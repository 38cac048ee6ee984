"""A frame's body: tensors in the safetensors format, named by their position.

Read and written here, and not by the library, because that copies every number twice in each
direction; a step's few megabytes would take half as long again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
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
"""The dtypes that may travel, by their names in the format."""

MAX_HEADER = 1 << 20
MAX_SIZE = 1 << 40
"""Of one dimension."""

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LENGTH = 8
"""Bytes of the header's length; the header itself is padded to a multiple."""


class BodyError(ValueError):
    """A body is none, or a tensor cannot be in one; the sentence carries no data."""


def write_body(tensors: Sequence[Tensor]) -> list[bytes | memoryview]:
    """Return a body in pieces; the tensors' own memory is among them and is not copied.

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
            raise BodyError(f"tensors of {tensor.dtype} cannot travel; {_allowed()}")
        begin, end = end, end + tensor.nbytes
        entries[str(index)] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        if tensor.nbytes:
            pieces.append(_bytes_of(tensor.detach().cpu().contiguous()))
    if not entries:
        return []
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)
    return [len(header).to_bytes(_LENGTH, "little"), header, *pieces]


def read_body(body: memoryview) -> list[Tensor]:
    """Return the tensors of a body, on the CPU, in memory of their own.

    Raises
    ------
    BodyError
        If it is no body as `write_body` makes them. Memory is taken for bytes that are there only.
    """
    if not body:
        return []
    length = int.from_bytes(body[:_LENGTH], "little")
    start = _LENGTH + length
    if length > MAX_HEADER or start > len(body):
        raise BodyError("the body is no safetensors: its header is longer than allowed")
    try:
        entries = json.loads(bytes(body[_LENGTH:start]))
    except (ValueError, RecursionError):
        raise BodyError("the body is no safetensors: its header is no JSON") from None
    if not isinstance(entries, dict):
        raise BodyError("the body is no safetensors: its header is no dictionary")
    tensors: list[Tensor] = []
    numbers, position = body[start:], 0
    for index in range(len(entries)):
        tensors.append(_read(entries.get(str(index)), numbers, position))
        position += tensors[-1].nbytes
    if position != len(numbers):
        raise BodyError("the body is longer than its tensors")
    return tensors


def _read(entry: Any, numbers: memoryview, position: int) -> Tensor:
    """Read the tensor that begins at a position."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BodyError("the body's tensors must have position, dtype, shape and offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise BodyError(f"the body holds a dtype that may not travel; {_allowed()}")
    if not _sizes(shape) or len(shape) > 16 or not _sizes(offsets) or len(offsets) != 2:
        raise BodyError("a tensor of the body has an impossible shape or offset")
    end = position + prod(shape) * dtype.itemsize
    if offsets != [position, end] or end > len(numbers):
        raise BodyError("a tensor of the body is not where or not as long as it must be")
    try:
        tensor = torch.empty(shape, dtype=dtype)
    except RuntimeError:  # no number at all in dimensions that are too large together
        raise BodyError("a tensor of the body has an impossible shape") from None
    if tensor.nbytes:
        _bytes_of(tensor)[:] = numbers[position:end]
    # A byte other than 0 and 1 is no bool that torch can work with.
    return tensor.view(torch.uint8).ne(0) if dtype == torch.bool else tensor


def _sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_SIZE for n in values
    )


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU that is not empty."""
    memory: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return memory


def _allowed() -> str:
    return f"allowed are {', '.join(str(dtype).removeprefix('torch.') for dtype in _CODES)}"
