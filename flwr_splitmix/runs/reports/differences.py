"""What differs between the configurations of runs, and what a run is called by it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

BOOKKEEPING = frozenset(
    {"label", "resume", "run-dir", "tracker", "keep-mixtures", "cell", "source"}
)
"""Keys that say what is kept of a run, and nothing of what it computes."""

PLACE = frozenset(
    {
        "device", "server-threads", "client-device", "num-hosts", "host-gpus", "host-threads",
        "link", "attach-timeout", "step-timeout", "link-address", "link-advertise",
        "link-insecure", "ssl-certfile", "ssl-keyfile", "ssl-ca-certfile", "link-client-ca",
        "checkpoint-every", "link-via", "link-via-token",
    }
)  # fmt: skip
"""Keys that say where and how fast a run computes."""

_FIRST = ("strategy", "model", "dataset", "partition", "k", "alpha")


def differing(configs: Iterable[Mapping[str, Any]], leave_out: Collection[str] = ()) -> list[str]:
    """Return the keys with more than one value among the configurations that have them."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for key, value in config.items():
            values.setdefault(key, set()).add(as_text(value))
    keys = [key for key, several in values.items() if len(several) > 1 and key not in leave_out]
    first = [key for key in _FIRST if key in keys]
    return [*first, *sorted(set(keys) - set(first))]


def as_text(value: Any) -> str:
    """Return a value of a configuration as a reader writes it, without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "name" in value:
        return str(value["name"])
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def in_words(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return "CutMixSL, k 2, alpha inf" for some keys; those that are missing are left out."""
    parts = [
        as_text(config[key]) if key == "strategy" else f"{key} {as_text(config[key]) or '(none)'}"
        for key in keys
        if key in config
    ]
    return ", ".join(parts)
