"""The largest epsilon of any client, of those that clients account for themselves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from flwr_splitmix.events import Exchange
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.unfinished import UnfinishedRounds
from flwr_splitmix.server.intake.reply_metrics import epsilons_in, epsilons_of


class ReportedEpsilons(Observer):
    """The largest epsilon of any client over the whole run, by the metric's name.

    Clients of a text method report what they have spent at the end of a round and of an
    evaluation. One with an unfinished round (it failed, or the round was lost), one that has sent
    test texts and no scores (or scores without epsilons), and one that never reports, has spent an
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
        self._replied: Collection[int] = ()
        self._without_report: set[int] = set()
        """Clients that have sent test texts since their last report."""

    def on_exchange(self, event: Exchange) -> None:
        """Note clients that send test texts, and the epsilons in their scores."""
        if event.phase != "evaluate" or event.direction != "up":
            return
        if "messages" in event.payload:
            self._without_report.add(event.client)
        epsilons = event.payload.get("epsilons")
        if isinstance(epsilons, Mapping):
            self._spent[event.client] = self._common(epsilons_in(epsilons))
            self._without_report.discard(event.client)

    def take(self, clients: Clients, names: Collection[str]) -> None:
        """Take the epsilons that the clients of a round report at its end.

        Mixing groups report nothing: their mixer keeps a ledger.

        Parameters
        ----------
        names
            Those that most clients of the round report; a name that most reported once is expected
            of all.
        """
        self._names |= set(names)
        replies = {
            client: clients.replies[client] for client in clients.alive if client in clients.replies
        }
        self._replied = replies.keys()
        self._spent |= {
            client: self._common(epsilons_of(reply)) for client, reply in replies.items()
        }
        self._without_report.difference_update(replies)

    def _common(self, epsilons: Mapping[str, float]) -> dict[str, float]:
        """Return those that most clients report: one client must not fill the checkpoints."""
        return {name: epsilon for name, epsilon in epsilons.items() if name in self._names}

    def largest(self) -> dict[str, float]:
        """Return the largest so far, by name."""
        if self._without_report or self._unfinished.clients.difference(self._replied):
            return dict.fromkeys(sorted(self._names), math.inf)
        return {
            name: max(
                (spent.get(name, math.inf) for spent in self._spent.values()), default=math.inf
            )
            for name in sorted(self._names)
        }

    def state(self) -> dict[str, Any]:
        """Return the known epsilons of each client."""
        return {
            "names": sorted(self._names),
            "spent": {str(client): spent for client, spent in self._spent.items()},
            "unsaid": sorted(self._without_report),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._names = set(state["names"])
        self._spent = {int(client): dict(spent) for client, spent in state["spent"].items()}
        self._without_report = set(state["unsaid"])
