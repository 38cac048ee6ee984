"""Whole numbers among the options of a strategy."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any) -> int:
    """Return a whole number, NumPy's included, as an int.

    Raises
    ------
    ValueError
        With the name, for anything else: floats, truth values, None.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{name} is {value!r}; it must be a whole number")
