"""Differences between the configurations of runs, and names of runs made from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flwr_splitmix.words import printable

BOOKKEEPING = frozenset(
    {"label", "resume", "run-dir", "tracker", "keep-mixtures", "record-attacks", "source"}
)
"""Keys that affect the record of a run, but not what it computes."""

PLACE = frozenset(
    {
        "device", "server-threads", "client-device", "num-hosts", "host-gpus", "host-threads",
        "link", "attach-timeout", "step-timeout", "link-address", "link-advertise",
        "link-insecure", "ssl-certfile", "ssl-keyfile", "ssl-ca-certfile", "link-client-ca",
        "checkpoint-every", "link-via", "link-via-token",
    }
)  # fmt: skip
"""Keys that affect where and how fast a run computes."""

_FIRST = ("strategy", "model", "dataset", "partition", "k", "alpha")


def differing(configs: Iterable[Mapping[str, Any]], leave_out: Collection[str] = ()) -> list[str]:
    """Return the keys that have more than one value among the configurations with that key."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for key, value in config.items():
            if key == "cell" and isinstance(value, str):
                continue  # an experiment's name of its run; in the vision app it is a length
            values.setdefault(key, set()).add(as_text(value))
    keys = [key for key, several in values.items() if len(several) > 1 and key not in leave_out]
    first = [key for key in _FIRST if key in keys]
    return [*first, *sorted(set(keys) - set(first))]


def as_text(value: Any) -> str:
    """Return a configuration value as printable text, without quotes."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping) and "name" in value:
        return printable(str(value["name"]))
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def in_words(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return some keys with their values, such as "CutMixSL, k 2, alpha inf"; skip missing keys."""
    parts = [
        as_text(config[key])
        if key == "strategy"
        else f"{printable(key)} {as_text(config[key]) or '(none)'}"
        for key in keys
        if key in config
    ]
    return ", ".join(parts)
