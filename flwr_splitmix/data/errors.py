"""The errors of this package, and the import of packages that may be missing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class DataError(ValueError):
    """A dataset, or a request for a part of one, that cannot be served; the message says why."""


class MissingColumnError(DataError):
    """Rows lack a column that was asked for.

    Attributes
    ----------
    where
        What lacks it.
    column
        What was asked for.
    there
        The columns that there are.
    """

    def __init__(self, where: str, column: str, there: Sequence[str], hint: str = "") -> None:
        listed = ", ".join(map(repr, there))
        super().__init__(f"{where} has no column {column!r}; it has {listed}{hint}")
        self.where = where
        self.column = column
        self.there = tuple(there)


def not_there(source: str) -> str:
    """Say of what looks like a path that it is not there, and how a relative one is read."""
    if os.sep not in source:
        return ""
    if Path(source).expanduser().is_absolute():
        return " (there is no such path here)"
    return (
        " (a relative path that is not there: an app does not run where you are, so give an "
        "absolute one)"
    )


def import_extra(module: str, purpose: str, extra: str = "vision") -> Any:
    """Import a module of an extra at the moment it is needed.

    An edge node that trains on the shipped set or on idx files has no use for these packages
    and need not have them.

    Parameters
    ----------
    module : str
        Full module name, for example "PIL.Image".
    purpose : str
        What needs it, as the subject of the message: "reading picture files".
    extra : str
        The extra of flwr-splitmix that installs it.

    Raises
    ------
    DataError
        If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which cannot be imported "
            f"({error}); install it with: pip install 'flwr-splitmix[{extra}]'"
        ) from error
