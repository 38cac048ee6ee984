"""The fields of a share that can be sent: how they are annotated, and which values fit."""

from __future__ import annotations

import inspect
import re
from dataclasses import Field
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
}

_KIND = re.compile(r"(list|dict)\[(?:(?<=dict\[)str,\s*)?(.+)\]")
"""A list or dictionary of something: the container, and what is in it."""


NOT_SENT = {"sent": False}
"""Metadata of a field that is not sent: a share that is sent has its default, at both ends."""


def is_sent(field: Field[Any]) -> bool:
    """Return whether a field of a share is sent with it."""
    return bool(field.metadata.get("sent", True))


def check_fields(cls: type) -> None:
    """Raise TypeError if a class annotates a field with a type that cannot be sent."""
    for field, annotation in inspect.get_annotations(cls).items():
        kind = kind_of(annotation)
        if not kind.startswith(("ClassVar", "typing.ClassVar")) and not _sendable(kind):
            raise TypeError(
                f"{field} of share {cls.__name__} is annotated {kind}; a share is sent as plain "
                "values: int, float, bool, str, list[...] or dict[str, ...] of them (or its own "
                "to_wire and from_wire)"
            )


def kind_of(annotation: Any) -> str:
    """Return an annotation as text; with `from __future__ import annotations` it is one."""
    plain = isinstance(annotation, type) and not hasattr(annotation, "__origin__")
    return annotation.__name__ if plain else str(annotation)


def fits(value: Any, kind: str) -> bool:
    """Return whether `check_fields` accepts a value's kind."""
    if inside := _KIND.fullmatch(kind):
        container, of = inside.groups()
        if not isinstance(value, list if container == "list" else dict):
            return False
        return all(
            fits(entry, of) for entry in (value if isinstance(value, list) else value.values())
        )
    if kind == "Any":
        return True
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


def _sendable(kind: str) -> bool:
    inside = _KIND.fullmatch(kind)
    return kind in _TYPES if inside is None else inside[2] == "Any" or _sendable(inside[2])
