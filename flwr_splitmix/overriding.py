"""Overridden methods of a class: those that a base's statement rests on, and this package's."""

from __future__ import annotations

from collections.abc import Iterable


def overridden(kind: type, methods: Iterable[str], statement: str) -> str:
    """Return the first method that a class has from a nearer class than a statement, or "".

    It is asked when a class is made, so methods that are set on a class later do not count.

    Parameters
    ----------
    methods
        Names of the methods that the statement is about.
    statement
        Name of the attribute that states it; a class that has both states it of its own methods.
    """
    stated = _place(kind, statement)
    return next((name for name in methods if _place(kind, name) < stated), "")


def is_own(kind: type, method: str) -> bool:
    """Return whether a class has a method from a class that is not of this package."""
    return not of_package(kind.__mro__[_place(kind, method)])


def of_package(kind: type) -> bool:
    """Return whether a class is one of this package's."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _place(kind: type, name: str) -> int:
    """Return which of a class and its bases, in their order, defines a name."""
    return next((i for i, base in enumerate(kind.__mro__) if name in vars(base)), len(kind.__mro__))
