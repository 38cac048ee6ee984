"""The key of a run's states on nodes: a secret by which they know the run when it is resumed."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from flwr_splitmix.files.reading import read_whole
from flwr_splitmix.files.writing import write_atomic
from flwr_splitmix.runs.damage import unreadable
from flwr_splitmix.runs.errors import RunError

FILE = "state-key"
"""Name of the key's file in the run's directory, which only its owner may read."""

_KEY = re.compile(rb"[0-9a-f]{32}")


def read_or_draw(folder: Path) -> str:
    """Return the key of the run in `folder`, 128 bits in hexadecimal, drawn if it has none.

    Raises
    ------
    RunError
        If its file cannot be read or written, or holds no key.
    """
    path = folder / FILE
    try:
        if not path.exists():
            # Without parents: a run's folder that was removed must not come back.
            write_atomic(path, secrets.token_hex(16).encode(), private=True, parents=False)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}; nodes would not know the run again when "
            "it is resumed: make it writable, with free space, and resume the run"
        ) from error
    try:
        key = read_whole(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not _KEY.fullmatch(key):
        raise unreadable(path, "it holds no key of 32 hexadecimal digits")
    return key.decode("ascii")
