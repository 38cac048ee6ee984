"""The home folder, with runs, models and states."""

from __future__ import annotations

import os
from pathlib import Path

HOME = "SPLITMIX_HOME"
"""Variable of the environment that names the home."""


def home_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of runs, models and states: `chosen`, $SPLITMIX_HOME, or ~/.splitmix.

    Its "~" is not expanded: that of an unknown user is an error, which callers word.
    """
    return Path(chosen or os.environ.get(HOME) or "~/.splitmix")


def expanded(path: str | Path, key: str, kind: type[Exception]) -> Path:
    """Return a path whose "~" or "~user" is replaced by the folder that it stands for.

    Parameters
    ----------
    key
        What names the path, for the error.
    kind
        Class of the error.

    Raises
    ------
    Exception
        Of that class, if there is no such user, or the user has no home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = Path(path).parts[0]
        if key == HOME and not os.environ.get(HOME):
            raise kind(
                f"{HOME} is not set, and this user has no home folder: set it to an absolute path"
            ) from None
        raise kind(
            f"{key} is {str(path)!r}, and this machine knows no folder {home!r}; give an absolute "
            "path"
        ) from None
