"""Files of a plausible size, read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import refuse_half_characters


def check_regular(path: Path) -> None:
    """Raise OSError if a path is there and no regular file: of a pipe no reader sees the end."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")


MAX_READ = 2**28
"""Most bytes of a file that is read whole: those of runs and of exports have far fewer."""


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; raise OSError if it is too large, or no regular file."""
    check_regular(path)
    if (size := path.stat().st_size) > MAX_READ:
        raise OSError(f"it has {size} bytes, and {MAX_READ} are the most that are read")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    OSError
        If the file cannot be read, is not a regular file, or has more than `MAX_READ` bytes.
    ValueError
        If it is not JSON, is nested too deeply, or holds half a character (a lone surrogate).
    """
    data = read_whole(path)
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"its JSON is damaged at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    refuse_half_characters(text, value)
    return value
