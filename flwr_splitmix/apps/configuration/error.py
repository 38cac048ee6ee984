"""The error of a wrong run configuration, and what it says. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from flwr_splitmix.apps.configuration.key_hints import likely_keys, means_clients
from flwr_splitmix.suggestions import either


class ConfigError(ValueError):
    """The run configuration is wrong; the message names the key, its value and allowed values."""


def unknown_key(key: str, allowed_keys: Iterable[str]) -> str:
    """Return the message that a key is unknown, with the keys that may have been meant."""
    names = list(allowed_keys)
    likely = likely_keys(key, names)
    if means_clients(key) and not any(map(means_clients, likely)):
        return (
            f"run-config has an unknown key {key!r}; the number of clients is no key: leave it out "
            'and give `splitmix run` --nodes, or `flwr run` --federation-config "num-supernodes=N"'
        )
    if likely:
        return f"run-config has an unknown key {key!r}; did you mean {either(likely)}?"
    if not names:
        return f"run-config has an unknown key {key!r}; this app has no keys; leave it out"
    return (
        f"run-config has an unknown key {key!r}; available: {', '.join(names)}; for keys of your "
        "own begin with `splitmix new own NAME`"
    )


def key_of(field: str) -> str:
    """Return the key of a field's or an argument's name."""
    return field.replace("_", "-")


def with_key_names(text: str, keys: Iterable[str]) -> str:
    """Return a message of the library with the names of keys, where it has those of arguments."""
    arguments = {key.replace("-", "_"): key for key in keys}
    return re.sub(r"\w+", lambda word: arguments.get(word[0], word[0]), text)


def sentence_of(error: Any, allowed_keys: Iterable[str]) -> str:
    """Return one of pydantic's errors (`ErrorDetails`) as a sentence.

    Parameters
    ----------
    allowed_keys
        The allowed keys.
    """
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return unknown_key(key, allowed_keys)
    if error["type"] == "missing":
        return f"run-config lacks {key!r}"
    message = with_key_names(error["msg"].removeprefix("Value error, "), allowed_keys)
    if not key:
        return f"run-config: {message}"
    return f"run-config: {key} is {error['input']!r}; {message[:1].lower()}{message[1:]}"
