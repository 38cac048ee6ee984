"""What is said of a wrong run configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """The run configuration is wrong; the sentence names key, value and what is allowed."""


def sentence(error: Any, known: Iterable[str]) -> str:
    """Say in one sentence what pydantic found wrong; `known` are the keys that there are."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"run-config has an unknown key {key!r}; allowed are {', '.join(known)}"
    if error["type"] == "missing":
        return f"run-config lacks {key!r}"
    message = error["msg"].removeprefix("Value error, ")
    if not key:
        return f"run-config: {message}"
    return f"run-config: {key} is {error['input']!r}; {message[:1].lower()}{message[1:]}"
