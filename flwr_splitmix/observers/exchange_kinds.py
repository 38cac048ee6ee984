"""The kinds of exchanges over the link in a run, without their content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.events import Exchange
from flwr_splitmix.observers.observer import Observer

MAX_KINDS = 200
"""Most kinds that are distinguished, since clients choose the contents of their replies."""

_MAX_NAMES, _LONGEST_NAME = 20, 40

_OTHER = ("other", "up", ())

_Key = tuple[str, str, tuple[str, ...]]
"""Phase, direction, and names in the payload."""


class ExchangeKinds(Observer):
    """Counts the exchanges of a run by kind: phase, direction and the names in the payload.

    Its state is stored in a run's record.json under "messages": for each kind `phase`,
    `direction`, `count`, `bytes` of tensors on the wire, and `holds`: by name, dtype and shape of
    the first tensor, or the type of a plain value. No values are kept.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Key, dict[str, Any]] = {}

    def on_exchange(self, event: Exchange) -> None:
        """Count an exchange; None values count as missing."""
        entries = [(name, value) for name, value in event.payload.items() if _has(value)]
        entries = entries[:_MAX_NAMES]
        names = tuple(str(name)[:_LONGEST_NAME] for name, _ in entries)
        key: _Key = (event.phase, event.direction, names)
        if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            key, entries = _OTHER, []
        if (kind := self._kinds.get(key)) is None:
            holds = dict(zip(names, (describe(value) for _, value in entries), strict=False))
            kind = self._kinds[key] = {**_as_fields(key), "holds": holds, "count": 0, "bytes": 0}
        kind["count"] += 1
        kind["bytes"] += event.nbytes

    def state(self) -> dict[str, Any]:
        """Return all kinds, in the order in which they were first seen."""
        return {"kinds": [dict(kind) for kind in self._kinds.values()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._kinds = {
            (kind["phase"], kind["direction"], tuple(kind["holds"])): dict(kind)
            for kind in state["kinds"]
        }


def _as_fields(key: _Key) -> dict[str, Any]:
    return dict(zip(("phase", "direction"), key, strict=False))


def _has(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has(entry) for entry in value)
    return value is not None


def describe(value: Any) -> str:
    """Describe a payload value's type without its content, e.g. "3 x float32 (32, 8, 192)"."""
    if isinstance(value, Tensor):
        shape = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} ({shape})"
    if isinstance(value, list | tuple):
        entries = [entry for entry in value if entry is not None]
        first = describe(entries[0]) if entries else "nothing"
        return first if len(entries) == 1 else f"{len(entries)} x {first}"
    if isinstance(value, Mapping):
        return "share of the plan" if "share" in value else "plain values"
    return {"int": "a whole number", "float": "a number", "str": "text", "bool": "yes or no"}.get(
        type(value).__name__, type(value).__name__
    )
