"""Fields of a description: their keys and ranges, and how they are read from plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.values import MAX_COUNT, shown, wrong_count

_MAX_INTEGER = 2**63 - 1
"""Most that a whole number under a key of a client's own may be, without its sign: longer ones, in
JSON of any length, could not be written to a file where they are kept."""


class DescriptionError(ForeseenError, ValueError):
    """A client describes itself in values that it cannot have; the message is about the client."""


class Whole(NamedTuple):
    """The range of a whole number."""

    least: int
    most: int = MAX_COUNT


Count = Annotated[int, Whole(0)]
Size = Annotated[int, Whole(1)]


class Part:
    """Some fields of a description."""

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values by key, without those that have their default."""
        plain: dict[str, Any] = {}
        for each in _entries(type(self)):
            value = getattr(self, each.name)
            if isinstance(value, Part):
                plain |= value.to_plain()
            elif each.required or value != each.default:
                plain[each.key] = list(value) if isinstance(value, tuple) else value
        return plain


def keys_of(kind: type[Part]) -> dict[str, Any]:
    """Return the keys of a part of a description, and of its own parts, with their types.

    A type is bool, str, float, tuple[str, ...] or, for a whole number, Annotated[int, Whole].
    """
    keys: dict[str, Any] = {}
    for each in _entries(kind):
        keys |= keys_of(each.kind) if _is_part(each.kind) else {each.key: each.kind}
    return keys


class _Entry(NamedTuple):
    """A field: its type, without None, and its default."""

    name: str
    kind: Any
    default: Any

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is MISSING


_ENTRIES: dict[Any, tuple[_Entry, ...]] = {}
"""The fields of each class, once they are known: type hints take a millisecond to resolve."""


def _entries(kind: Any) -> tuple[_Entry, ...]:
    """Return the fields of a part of a description, without `others`."""
    if kind not in _ENTRIES:
        hints = get_type_hints(kind, include_extras=True)
        _ENTRIES[kind] = tuple(
            _Entry(one.name, _without_none(hints[one.name]), one.default)
            for one in fields(kind)
            if one.name != "others"
        )
    return _ENTRIES[kind]


def _without_none(hint: Any) -> Any:
    return get_args(hint)[0] if NoneType in get_args(hint) else hint


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)


PartT = TypeVar("PartT", bound=Part)


def read_part(kind: type[PartT], description: Mapping[str, Any], **presets: Any) -> PartT:
    """Return a part of a description with its fields' values, and other values by name.

    Raises
    ------
    DescriptionError
        If a required key is missing, or a value has another type or is beyond its range.
    """
    values = dict(presets)
    for entry in _entries(kind):
        value = description.get(entry.key)
        if _is_part(entry.kind):
            values[entry.name] = read_part(entry.kind, description)
        elif value is not None or entry.required:
            values[entry.name] = _checked(entry, value)
    return kind(**values)


def _checked(entry: _Entry, value: Any) -> Any:
    """Return the value of a field; raise DescriptionError if it has another type or range."""
    kind, wrong = entry.kind, ""
    if value is None:
        raise DescriptionError(f"does not say its {entry.key}, as it must")
    if isinstance(limits := next(iter(getattr(kind, "__metadata__", ())), None), Whole):
        wrong = wrong_count(value, *limits)
    elif kind is float:
        if type(value) is not float or not math.isfinite(value):
            wrong = f"is {shown(value)}; it must be a finite floating-point number"
    elif kind in (bool, str):
        if not isinstance(value, kind):
            allowed = "true or false" if kind is bool else "a text"
            wrong = f"is {shown(value)}; it must be {allowed}"
    elif not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        wrong = "is no list of texts"
    if wrong:
        raise DescriptionError(f"says that its {entry.key} {wrong}")
    return tuple(value) if isinstance(value, list) else value


def is_plain(value: object) -> bool:
    """Return whether a value is None, a number, a truth value or text, or a list of such."""
    if isinstance(value, (list, tuple)):
        return all(_is_single(each) for each in value)
    return _is_single(value)


def _is_single(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return value is None or isinstance(value, (float, str))
