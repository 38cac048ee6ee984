"""Plain values as JSON that any parser reads, with the numbers that JSON lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

NOT_FINITE = ("nan", "inf", "-inf")
"""The texts that stand in JSON for the numbers that it lacks."""


def strict_json(value: Any, **options: Any) -> str:
    """Return `value` as JSON that any parser reads: NaN and infinities become text ("nan", "inf").

    `options` are those of `json.dumps`.
    """
    return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """Return plain values with each NaN or infinity as one of `NOT_FINITE`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


_FLOAT = "splitmix-float"


def marked(value: Any) -> Any:
    """Return plain values with each NaN or infinity as {"splitmix-float": "nan"}, for JSON.

    Unlike those of `finite`, they cannot be taken for text that a user wrote.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        return {key: marked(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(entry) for entry in value]
    return value


def unmarked(value: Any) -> Any:
    """Return what `marked` was given, of plain values as read from JSON.

    Raises
    ------
    ValueError
        If what is marked is not a number, or values are nested too deeply.
    """
    try:
        return _unmarked(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(str(value[_FLOAT]))
        return {key: _unmarked(entry) for key, entry in value.items()}
    return [_unmarked(entry) for entry in value] if isinstance(value, list) else value


def refuse_half_characters(text: str, value: Any) -> None:
    """Raise ValueError if a value, read from JSON in UTF-8, holds a lone surrogate."""
    if "\\ud" in text.lower():  # else there is none, as UTF-8 has no surrogates
        json.dumps(value, ensure_ascii=False).encode()
