"""Numbers formatted for readers: percent, bytes, seconds."""

from __future__ import annotations

import math
from typing import Any

from flwr_splitmix.words import data_size

NOTHING = "-"
"""Text in place of a missing value."""


def number(value: Any, digits: int = 4) -> str:
    """Return a number with `digits` decimals, text unchanged, and "-" for None."""
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:.{digits}f}" if math.isfinite(value) else str(value)


def count(value: Any) -> str:
    """Return an integer with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def percent(fraction: Any) -> str:
    """Return a fraction of 1 as "81.3 %"."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f} %"


def size(value: Any) -> str:
    """Return a number of bytes as `data_size` does."""
    return NOTHING if value is None else data_size(value)


def duration(seconds: Any) -> str:
    """Return seconds as "0.42 s", "42.0 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.{1 if seconds >= 10 else 2}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
