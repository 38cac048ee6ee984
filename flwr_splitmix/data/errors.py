"""The errors of data sets, and the import of optional packages."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.extras import how_to_install
from flwr_splitmix.words import listed

_MOST, _LONGEST = 20, 60  # names in a message, and characters of each


class DataError(ValueError):
    """A data set, or a part of one, cannot be provided; the message says why."""


class ExamplesError(ForeseenError, TypeError):
    """Examples of the wrong types, or without a required part.

    Parameters
    ----------
    message
        For the client's own log.
    public
        What a server may read: fault and remedy, without values of the examples. By default the
        message, which then must have none.
    """

    def __init__(self, message: str, public: str = "") -> None:
        super().__init__(message)
        self.public = public or message


class MissingColumnError(DataError):
    """Rows lack a requested column.

    Attributes
    ----------
    where
        The file or data set that lacks it.
    column
        The requested column.
    listed
        The first of the existing columns, as text: a file of another kind may seem to have a
        column of all its content.
    number
        The number of existing columns.
    hint
        What else may be wrong, as the end of a sentence.
    """

    def __init__(self, where: str, column: str, columns: Sequence[str], hint: str = "") -> None:
        self.listed = listed(map(_shortened, columns), most=_MOST)
        super().__init__(f"{where} has no column {column!r:.80}; it has {self.listed}{hint}")
        self.where = where
        self.column = column
        self.number = len(columns)
        self.hint = hint


def _shortened(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}...")


class TestRowsError(DataError):
    """The test rows that `test` names (test-dataset) cannot be provided."""


def not_there(source: str) -> str:
    """Return the note that a source that looks like a path is not a file; "" for other sources."""
    if os.sep not in source:
        return ""
    place = Path(source).expanduser()
    if os.path.exists(place):  # Path.exists raises for names that are too long
        return " (it is a folder)" if place.is_dir() else " (it is not a regular file)"
    if place.is_absolute():
        return " (there is no such path here)"
    return (
        " (a relative path that is not there: an app does not run where you are, so give an "
        "absolute one)"
    )


def import_extra(module: str, purpose: str, extra: str = "vision") -> Any:
    """Import a module of an extra when it is needed.

    An edge node that trains on the shipped data set or on idx files does not need these packages.

    Parameters
    ----------
    module
        Full module name, for example "PIL.Image".
    purpose
        What needs it, as the subject of the message, for example "reading picture files".
    extra
        Extra of flwr-splitmix that installs it.

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
            f"({error}); install it with: {how_to_install(extra)}"
        ) from error
