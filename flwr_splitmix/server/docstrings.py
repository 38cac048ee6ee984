"""The Parameters sections of strategies' docstrings, completed with inherited parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

_HEADING = "Parameters\n----------\n"
_REST = "**options"


def complete(strategy: type, passed_on: Collection[str]) -> None:
    """Write the parameters that a class inherits into its docstring, so that `help` shows them.

    They replace the entry with ``**options`` of its Parameters section. A docstring without the
    section gets one, if the class has no constructor of its own.

    Parameters
    ----------
    strategy
        The class. Its bases must be completed already.
    passed_on
        Which of the inherited parameters a constructor of its own takes as ``**options``.
    """
    start, entries, end = _parts(strategy)
    inherited = next(filter(None, (_parts(base)[1] for base in strategy.__mro__[1:])), [])
    has_constructor = "__init__" in vars(strategy)
    if not start or not inherited or (has_constructor and not entries):
        return
    if not entries:
        start, source, end = start.partition("Source: ")
        start, entries, end = f"{start.rstrip()}\n\n", [_REST], source + end
    documented = {name for entry in entries if _REST not in _names(entry) for name in _names(entry)}
    if has_constructor:
        inherited = [entry for entry in inherited if _names(entry) <= set(passed_on)]
    inherited = [entry for entry in inherited if not _names(entry) & documented]
    section = [
        line for entry in entries for line in (inherited if _REST in _names(entry) else [entry])
    ]
    strategy.__doc__ = f"{start}{_HEADING}" + "\n".join([*section, "", end]).rstrip()


def _parts(kind: type) -> tuple[str, list[str], str]:
    """Return the text before the Parameters of a docstring, their entries, and the text after."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    start, _, rest = text.partition(_HEADING)
    section, _, end = rest.partition("\n\n")
    return start, re.split(r"\n(?=\S)", section) if section else [], end


def _names(entry: str) -> set[str]:
    return set(entry.partition("\n")[0].split(", "))
