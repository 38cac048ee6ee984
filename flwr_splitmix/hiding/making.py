"""Creates a hiding method from the options of an app or experiment, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from flwr_splitmix.hiding.hiding import Hiding

GIVEN = frozenset({"public", "vocab_size", "special_ids", "causal"})
"""Arguments given by data, task and tokenizer, which are not options of the method."""


def make_hiding(kind: type[Hiding], sources: Mapping[str, Callable[[], Any]]) -> Hiding:
    """Make a hiding, calling only those `sources` that its constructor names.

    Raises
    ------
    TypeError
        If the constructor needs an argument without a source.
    """
    named = inspect.signature(kind).parameters
    return kind(**{name: sources[name]() for name in named if name in sources})


def hiding_options(kind: type[Hiding]) -> set[str]:
    """Return the names of a hiding's own options, with the fields of a dataclass `options`."""
    names = set(inspect.signature(kind).parameters) - GIVEN
    if "options" in names:
        hint = get_type_hints(kind.__init__)["options"]
        (options,) = (each for each in (hint, *get_args(hint)) if is_dataclass(each))
        names = (names - {"options"}) | {field.name for field in fields(options)}
    return names
