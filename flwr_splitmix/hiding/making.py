"""Creates a hiding method from the options of an app or experiment, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

from flwr_splitmix.hiding.hiding import Hiding

GIVEN_ARGUMENTS = frozenset({"public", "vocab_size", "special_ids", "causal"})
"""Arguments given by data, task and tokenizer, which are not options of the method."""

_OPTIONS_ARGUMENT = "options"
"""Argument with a dataclass, whose fields are the options."""


def make_hiding(kind: type[Hiding], sources: Mapping[str, Callable[[], Any]]) -> Hiding:
    """Make a hiding, calling only those `sources` that its constructor names.

    A dataclass `options` is made of the sources with the names of its fields.

    Raises
    ------
    TypeError
        If the constructor needs an argument without a source.
    """
    arguments = _called(inspect.signature(kind).parameters, sources)
    if (grouped := _options_of(kind)) is not None:
        arguments[_OPTIONS_ARGUMENT] = grouped(
            **_called((f.name for f in fields(grouped)), sources)
        )
    return kind(**arguments)


def sources_of(options: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return options as sources for `make_hiding`."""
    return {name: partial(options.get, name) for name in options}


def hiding_options(kind: type[Hiding]) -> set[str]:
    """Return the names of a hiding's own options, with the fields of a dataclass `options`."""
    names = set(inspect.signature(kind).parameters) - GIVEN_ARGUMENTS
    if (grouped := _options_of(kind)) is not None:
        names = (names - {_OPTIONS_ARGUMENT}) | {field.name for field in fields(grouped)}
    return names


def needs_public(kind: type[Hiding]) -> bool:
    """Return whether a hiding cannot be made without public texts."""
    named = inspect.signature(kind).parameters
    return "public" in named and named["public"].default is inspect.Parameter.empty


def _options_of(kind: type[Hiding]) -> Any:
    """Return the dataclass of a constructor's argument `options`; None without that argument."""
    if _OPTIONS_ARGUMENT not in inspect.signature(kind).parameters:
        return None
    hint = get_type_hints(kind.__init__)[_OPTIONS_ARGUMENT]
    (grouped,) = (each for each in (hint, *get_args(hint)) if is_dataclass(each))
    return grouped


def _called(names: Iterable[str], sources: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    return {name: sources[name]() for name in names if name in sources}
