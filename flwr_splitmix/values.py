"""Checks of single values that are given as options, with the option's name in every error."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from flwr_splitmix.words import with_article

MAX_COUNT = 2**31 - 1
"""Bound on counts and sizes that another process states."""


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number, NumPy's included, as an int.

    Raises
    ------
    ValueError
        For anything else (floats, truth values, None), and for less than `least`.
    """
    number: int | None = None
    try:
        if not isinstance(value, bool):
            number = operator.index(value)
    except TypeError:
        pass
    if number is None:
        raise ValueError(f"{name} is {value!r}; it must be a whole number")
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}")
    return number


def real_number(name: str, value: Any) -> float:
    """Return a real number, NumPy's included, as a float; NaN and infinities are left to ranges.

    Raises
    ------
    ValueError
        For anything else (truth values, text, None), and for whole numbers beyond all floats.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name} is {shown(value)}; it must be a number that a float can hold, at most 1.8e308"
        ) from None


def wrong_count(value: object, least: int, most: int = MAX_COUNT) -> str:
    """Return what is wrong with a whole number of another process; "" if it is in least..most."""
    if isinstance(value, int) and value > most:
        return f"is more than {most}"
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        return f"is {shown(value)}; it must be an integer of at least {least}"
    return ""


def shown(value: object) -> str:
    """Return an untrusted value as short text; Python refuses to print very long integers."""
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        return f"more than {MAX_COUNT}" if value > 0 else f"less than -{MAX_COUNT}"
    simple = value is None or isinstance(value, (int, float, str))
    return repr(value)[:40] if simple else with_article(type(value).__name__)


def check_truth(name: str, value: object) -> None:
    """Raise ValueError unless a value is True or False: "no" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it must be True or False")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ValueError unless a value is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """Raise TypeError, with the name and what is `expected`, for an object of another kind."""
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        description = f"the class {value.__name__}"
        expected = f"an object, {value.__name__}(...)" if issubclass(value, kind) else expected
    else:
        says_itself = value is None or isinstance(value, (str, bytes))
        description = repr(value) if says_itself else with_article(type(value).__name__)
    raise TypeError(f"{name} is {description}; expected {expected}")


def check_initialized(thing: object, base: type, attribute: str) -> None:
    """Raise TypeError if an object lacks an attribute that `__init__` of its base class sets."""
    if not hasattr(thing, attribute):
        name = type(thing).__name__
        raise TypeError(
            f"__init__ of {name} must call super().__init__(...), that of {base.__name__}, which "
            "sets what the other methods need"
        )


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function can be called with these arguments, as far as can be known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, for example
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def options_of(thing: object) -> dict[str, Any]:
    """Return the options that an object was made with, by name, as JSON values.

    They are read from the attributes that have the names of its class's parameters. Options that it
    does not keep so are left out, and so are those that are not JSON values, like a data set;
    infinities and NaN are text.
    """
    try:
        names = list(inspect.signature(type(thing)).parameters)
    except (TypeError, ValueError):  # written in C, for example
        return {}
    attributes = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    return {name: plain[0] for name, value in attributes.items() if (plain := _plain(value))}


def _plain(value: object) -> list[Any]:
    """Return a list with a value as a JSON value; an empty list if it cannot be one."""
    if value is None or isinstance(value, (bool, int, str)):
        return [value]
    if isinstance(value, float):
        return [value if math.isfinite(value) else str(value)]
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        inside = {str(key): _plain(each) for key, each in value.items()}
        return [{key: each[0] for key, each in inside.items() if each}]
    if isinstance(value, (list, tuple)):
        entries = [_plain(each) for each in value]
        return [[each[0] for each in entries]] if all(entries) else []
    return []
