"""Rounds that clients began and did not finish: what they sent in them, they may send again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.observers.observer import Observer


class UnfinishedRounds(Observer):
    """Counts, for each client, the rounds that it began since the last one that it finished.

    A client that is lost in a round continues from its last state, which may lack what it charged
    itself in that round.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._attached: tuple[int, ...] = ()

    def of(self, client: int) -> int:
        """Return a client's number of unfinished rounds."""
        return self._counts[client]

    def on_begin(self, event: RoundBegun) -> None:
        """Count the round for all nodes that attached to it."""
        self._attached = tuple(event.nodes)
        self._counts.update(self._attached)

    def on_round(self, event: RoundDone) -> None:
        """Drop the counts of those that finished it; who was not asked keeps its count."""
        for client in self._attached:
            if client not in event.failures:
                del self._counts[client]

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"unfinished": {str(client): n for client, n in self._counts.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._counts = Counter({int(client): n for client, n in state["unfinished"].items()})
