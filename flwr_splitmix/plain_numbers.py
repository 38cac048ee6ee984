"""Metrics as the plain numbers that Flower's messages carry."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor


def plain_numbers(metrics: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return metrics with NumPy's numbers and 0-d tensors as plain numbers; lists as they are.

    Raises
    ------
    TypeError
        If a value is anything else; the message begins with `whose`.
    """
    return {name: _number(name, value, whose) for name, value in metrics.items()}


def _number(name: str, value: Any, whose: str) -> int | float | list[int] | list[float]:
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list):
        return value
    raise TypeError(f"{whose} returned {name!r} as a {type(value).__name__}; metrics are numbers")
