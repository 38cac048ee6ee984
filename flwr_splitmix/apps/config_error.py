"""The error of a wrong run configuration. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from flwr_splitmix.suggestions import close_to, either


class ConfigError(ValueError):
    """The run configuration is wrong; the message names the key, its value and allowed values."""


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the message that a key is unknown, with the keys that may have been meant."""
    names = list(known)
    alike = close_to(key, names)
    if alike:
        return f"run-config has an unknown key {key!r}; did you mean {either(alike)}?"
    remedy = f"allowed are {', '.join(names)}" if names else "this app has no keys; leave it out"
    return f"run-config has an unknown key {key!r}; {remedy}"
