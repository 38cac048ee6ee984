"""The largest epsilon of any client, of those that clients account for themselves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from flwr_splitmix.observers import Observer


class ReportedEpsilons(Observer):
    """The largest epsilon of any client over the whole run, by the metric's name.

    Clients of a text method report what they have spent at the end of a round. One that took part
    in a round and has not reported since, or never reports, has spent an unknown amount: then the
    largest is infinite. It is kept in checkpoints.
    """

    def __init__(self) -> None:
        self._spent: dict[int, dict[str, float]] = {}
        self._names: set[str] = set()

    def forget(self) -> None:
        """Begin another run."""
        self.__init__()  # type: ignore[misc]

    def largest(
        self,
        took_part: Collection[int],
        reported: Mapping[int, Mapping[str, float]],
        names: Collection[str],
    ) -> dict[str, float]:
        """Note what the clients of a round have reported, and return the largest by name.

        Parameters
        ----------
        took_part
            The clients that attached to the round.
        reported
            The epsilons of those that finished it.
        names
            The epsilons that most of them report. What most reported once is asked of all.
        """
        self._names |= set(names)
        for client in took_part:
            self._spent[client] = dict(reported.get(client, {}))
        return {
            name: max(own.get(name, math.inf) for own in self._spent.values())
            for name in sorted(self._names)
        }

    def state(self) -> dict[str, Any]:
        """Return what is known of each client."""
        return {
            "names": sorted(self._names),
            "spent": {str(client): own for client, own in self._spent.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._names = set(state["names"])
        self._spent = {int(client): dict(own) for client, own in state["spent"].items()}
