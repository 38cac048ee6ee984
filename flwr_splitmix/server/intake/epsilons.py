"""The largest epsilon of any client, of those that clients account for themselves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.unfinished import UnfinishedRounds
from flwr_splitmix.server.intake.replies import epsilons_of


class ReportedEpsilons(Observer):
    """The largest epsilon of any client over the whole run, by the metric's name.

    Clients of a text method report what they have spent at the end of a round. One with an
    unfinished round (it failed, or the round was lost), and one that never reports, has spent an
    unknown amount: then the largest is infinite. It is kept in checkpoints.

    Parameters
    ----------
    unfinished
        The run's count of rounds that clients began and did not finish.
    """

    def __init__(self, unfinished: UnfinishedRounds) -> None:
        self._unfinished = unfinished
        self.forget()

    def forget(self) -> None:
        """Begin another run."""
        self._spent: dict[int, dict[str, float]] = {}
        self._names: set[str] = set()

    def largest(self, clients: Clients, names: Collection[str]) -> dict[str, float]:
        """Return the largest by name at the end of a round, with what its clients report.

        Mixing groups report nothing: their mixer keeps a ledger.

        Parameters
        ----------
        names
            Those that most clients of the round report; what most reported once is asked of all.
        """
        self._names |= set(names)
        replied: Collection[int] = ()
        if len(clients.alive) == len(clients.replies):
            replied = clients.alive
            self._spent |= dict(zip(replied, map(epsilons_of, clients.replies), strict=True))
        if self._unfinished.clients.difference(replied):
            return dict.fromkeys(sorted(self._names), math.inf)
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
