"""Nodes that answer a question with an error: why, and when each is asked again."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0  # seconds

_REMEDIES = {
    "No query function registered": "; is its app a SplitClientApp?",
    "Can't get attribute": "; the SuperLink may have been started in the folder of another app, "
    "whose modules of the same names come first: end it, and start it in an empty folder",
}
"""The remedy, by the words of an error that a ClientApp of plain Flower or a simulation reports."""


class Refusals:
    """Why nodes refuse to answer; each is asked again after pauses that double.

    A node that starts may fail a first time. One that fails each time writes a traceback to the
    log each time, and in a simulation there are many.

    Attributes
    ----------
    since
        When the first one refused, by the monotonic clock; infinite if none has.
    """

    def __init__(self) -> None:
        self.since = math.inf
        self._why: dict[int, str] = {}
        self._pauses: dict[int, float] = {}
        self._retry_at: dict[int, float] = {}

    def add(self, node: int, why: str) -> None:
        """Note a node's refusal or failed answer, and when to ask again."""
        for words, remedy in _REMEDIES.items():
            if words in why:
                why += remedy
        self._why[node] = why
        self.since = min(self.since, time.monotonic())
        pause = self._pauses.get(node, _FIRST_PAUSE)
        self._retry_at[node] = time.monotonic() + pause
        self._pauses[node] = min(2 * pause, _LONGEST_PAUSE)

    def remove(self, node: int) -> None:
        """Forget a node that has answered."""
        self._why.pop(node, None)

    def paused(self) -> set[int]:
        """Return the nodes that are not to be asked yet."""
        now = time.monotonic()
        return {node for node in self._why if now < self._retry_at[node]}

    def resume(self) -> None:
        """Let all nodes be asked at once."""
        self._retry_at = dict.fromkeys(self._retry_at, 0.0)

    def of(self, nodes: Collection[int]) -> set[int]:
        """Return which of some nodes refuse to answer."""
        return self._why.keys() & nodes

    def sentence(self, further: Iterable[str]) -> str:
        """Return the reasons in words, three at most, with `further` ones; "" if there are none."""
        return "; ".join(sorted({*self._why.values(), *further})[:3])
