"""The codec of payloads: nested plain values and tensors, as JSON and a list of tensors.

None, booleans, numbers, strings and lists are written as in JSON. A dictionary is {"map": ...}, a
non-finite number {"float": "nan"}, a tensor {"tensor": its position in the body}; a narrowed tensor
also has its original "dtype" and, if any, the position of its "scale".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.links.frames.body import DTYPES
from flwr_splitmix.links.frames.wire import WireDtype, narrow, widen, wire_bytes

MAX_DEPTH = 32

EXACT_KEYS = frozenset({"labels"})
"""Tensors under these keys are sent in their own dtype, whatever the wire format."""

_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class CodecError(ValueError):
    """Bytes are not a frame, or a payload cannot be sent; the message contains no data."""


def take_apart(
    value: Any,
    wire: WireDtype,
    tensors: list[Tensor],
    draws: torch.Generator | None = None,
    depth: int = 0,
) -> Any:
    """Convert a payload to JSON values; its tensors, narrowed, are appended to `tensors`.

    Parameters
    ----------
    draws
        Generator for stochastic rounding; see `narrow`.

    Raises
    ------
    CodecError
        If it contains something that cannot be sent.
    """
    if depth > MAX_DEPTH:
        raise CodecError(f"a payload is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, (list, tuple)):
        return [take_apart(item, wire, tensors, draws, depth + 1) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise CodecError("a dictionary's keys must be strings to travel")
        return {
            "map": {
                key: take_apart(item, wire_of(key, wire), tensors, draws, depth + 1)
                for key, item in value.items()
            }
        }
    if not isinstance(value, Tensor):
        raise CodecError(f"{type(value).__name__} cannot travel: only tensors and plain values can")
    numbers, scale = narrow(value.detach(), wire, draws)
    tensors.append(numbers)
    described: dict[str, Any] = {"tensor": len(tensors) - 1}
    if numbers.dtype != value.dtype:
        described["dtype"] = str(value.dtype).removeprefix("torch.")
    if scale is not None:
        tensors.append(scale)
        described["scale"] = len(tensors) - 1
    return described


def wire_of(key: str, wire: WireDtype) -> WireDtype:
    """Return the wire format of a payload's value under a key."""
    return "keep" if key in EXACT_KEYS else wire


class Assembler:
    """Reassembles a payload; each tensor of the body is used exactly once.

    Parameters
    ----------
    tensors
        The tensors of the body.
    max_bytes
        Most bytes that narrowed tensors may take once widened.

    Attributes
    ----------
    narrowed
        Whether one of them was narrowed.
    """

    def __init__(self, tensors: list[Tensor], max_bytes: int) -> None:
        self._tensors = tensors
        self._used: set[int] = set()
        self._bytes_left = max_bytes
        self.narrowed = False

    def payload(self, node: Any) -> dict[str, Any]:
        """Return the payload described by a header.

        Raises
        ------
        CodecError
            If it is not a valid payload, or does not mention every tensor exactly once.
        """
        payload = self._value(node, 0)
        if not isinstance(payload, dict):
            raise CodecError("a frame's payload is not a dictionary")
        if len(self._used) != len(self._tensors):
            raise CodecError("a frame carries tensors that its payload does not mention")
        return payload

    def _value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise CodecError(f"a payload is nested more than {MAX_DEPTH} deep")
        if isinstance(node, float) and not math.isfinite(node):
            raise CodecError("a number of a frame's header is too large")
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        if isinstance(node, list):
            return [self._value(item, depth + 1) for item in node]
        if node.keys() == {"map"} and isinstance(node["map"], dict):
            return {key: self._value(item, depth + 1) for key, item in node["map"].items()}
        if node.keys() == {"float"} and isinstance(node["float"], str) and node["float"] in _FLOATS:
            return _FLOATS[node["float"]]
        if "tensor" in node and node.keys() <= {"tensor", "dtype", "scale"}:
            return self._tensor(node)
        raise CodecError("a frame's payload holds a value of unknown kind")

    def _tensor(self, node: dict[str, Any]) -> Tensor:
        numbers = self._take(node["tensor"])
        scale = self._take(node["scale"]) if "scale" in node else None
        if "dtype" not in node:
            if scale is not None:
                raise CodecError("a tensor with a scale must say its dtype")
            return numbers
        dtype = _NAMES.get(node["dtype"]) if isinstance(node["dtype"], str) else None
        if dtype is None or not dtype.is_floating_point:
            raise CodecError("a narrowed tensor's dtype must be a floating-point one")
        packed = numbers.dtype == torch.uint8
        if not numbers.is_floating_point() and numbers.dtype != torch.int8 and not packed:
            raise CodecError("only floating-point, int8 and packed tensors can be widened")
        self.narrowed = True
        self._bytes_left -= numbers.numel() * (2 if packed else 1) * dtype.itemsize
        if self._bytes_left < 0:
            raise CodecError("a frame's tensors are larger than allowed when they are widened")
        try:
            return widen(numbers, scale, dtype)
        except ValueError as error:
            raise CodecError(str(error)) from None

    def _take(self, index: Any) -> Tensor:
        if not isinstance(index, int) or isinstance(index, bool):
            raise CodecError("a tensor's position must be an integer")
        if not 0 <= index < len(self._tensors) or index in self._used:
            raise CodecError("a frame's payload mentions a tensor that is not there, or twice")
        self._used.add(index)
        return self._tensors[index]


def payload_bytes(payload: Any, wire: WireDtype) -> int:
    """Return the bytes of all tensors of a payload as sent by `encode`."""
    if isinstance(payload, Tensor):
        return wire_bytes(payload, wire)
    if isinstance(payload, Mapping):
        return sum(payload_bytes(item, wire_of(key, wire)) for key, item in payload.items())
    if isinstance(payload, (list, tuple)):
        return sum(payload_bytes(item, wire) for item in payload)
    return 0
