"""The error of this package, and the import of packages that may be missing."""

from __future__ import annotations

import importlib
from typing import Any


class DataError(ValueError):
    """A dataset, or a request for a part of one, that cannot be served; the message says why."""


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
