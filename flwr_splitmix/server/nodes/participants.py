"""The clients of a run: which are drawn for a round, have no data, and have trained."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Mapping
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from flwr_splitmix.links import Clients, Link, LinkError
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.naming import name_clients, name_reasons
from flwr_splitmix.server.nodes.federation import Federation
from flwr_splitmix.server.nodes.without_data import WithoutData
from flwr_splitmix.storage import text_keys, whole_keys
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")


def size_of_draw(nodes: int, min_nodes: int, fraction: float) -> int:
    """Return how many of so many nodes a round asks for; see `Participants.draw`."""
    return max(min_nodes, round(fraction * nodes))


def drawn_clients(
    clients: Collection[int],
    rng: np.random.Generator,
    size: int,
    without_data: Container[int] = (),
) -> tuple[list[int], int]:
    """Draw a round's clients, other than those known to have no data.

    Returns
    -------
    The clients, at most `size`, sorted; and how many others could have been drawn.
    """
    order = [int(c) for c in rng.permutation(sorted(clients)) if int(c) not in without_data]
    return sorted(order[:size]), max(len(order) - size, 0)


class DrawAgainError(LinkError):
    """Too few of the clients that were drawn have data, but others may have."""


class Participants:
    """Draws the clients of a run's rounds and remembers which of them finished.

    Attributes
    ----------
    last_trained_round
        By client index, the last round that the client finished.
    partitions
        By client index, the number of parts of the data, as far as reported by nodes; 0 once a
        client's node has reported different numbers.
    """

    def __init__(self) -> None:
        self._federation = Federation()
        self.last_trained_round: dict[int, int] = {}
        self.partitions: dict[int, int] = {}
        self._without_data = WithoutData()
        self._undrawn = 0
        self._once = SeenKeys()

    def warn_of_seeds(self, clients: Clients) -> None:
        """Log, once a run, if a ledger counts noise that is not a secret of the server's."""
        descriptions = clients.descriptions
        seeded = [client for client in clients.alive if descriptions[client].repeatable_secrets]
        if seeded and self._once.add("seeded"):
            counted_as_none = any(descriptions[client].seeded for client in seeded)
            log.warning(
                "noise of %s is drawn from the run's seed (repeatable_secrets), with which the "
                "server can subtract it: it protects nothing, and %s",
                name_clients(seeded),
                "there is no epsilon"
                if counted_as_none
                else "epsilon is what it would cost if the seed were a secret",
            )

    def draw(
        self,
        link: Link,
        grid: Grid | None,
        rng: np.random.Generator,
        *,
        min_nodes: int,
        fraction: float,
    ) -> dict[int, int]:
        """Draw a round's clients: client index -> node id, sorted by index.

        Parameters
        ----------
        min_nodes
            Fewest clients of a round.
        fraction
            Fraction of the nodes that take part in it.

        Raises
        ------
        LinkError
            If fewer than `min_nodes` nodes are there.
        RunError
            As `Federation.check`.
        """
        directory = link.directory(grid, min_nodes)
        self._federation.check(link.virtual_nodes, link.run_of_strategy)
        self._note_partitions(link.partitions)
        size = size_of_draw(len(directory), min_nodes, fraction)
        drawn, self._undrawn = drawn_clients(directory, rng, size, self._without_data.clients)
        return {client: directory[client] for client in drawn}

    def _note_partitions(self, reported: Mapping[int, int]) -> None:
        """Note the number of parts of the data that nodes report; warn of changes."""
        recorded = {
            client: self.partitions.setdefault(client, parts) for client, parts in reported.items()
        }
        changed = [
            client for client in sorted(reported) if recorded[client] not in (0, reported[client])
        ]
        if not changed:
            return
        self.partitions |= dict.fromkeys(changed, 0)
        first = changed[0]
        log.warning(
            "num-partitions of %s changed during the run, such as that of client %d from %d to %d: "
            "it is no longer certain which part of a common data set it trained on, and attacks "
            "on the run cannot know it, either; start a SuperNode again with the number that it "
            "had",
            counted(len(changed), "node"),
            first,
            recorded[first],
            reported[first],
        )

    def forget_draw(self) -> None:
        """Forget the last draw, before a hook chooses clients.

        So clients that an overridden hook has chosen itself are not drawn again.
        """
        self._undrawn = 0

    def admit(self, clients: Clients, min_nodes: int, *, purpose: str) -> None:
        """Have clients drawn again if too few of them have data, and others may have.

        Parameters
        ----------
        purpose
            The purpose of the draw, for messages, such as "round 3".

        Raises
        ------
        DrawAgainError
            If they are to be drawn again; those without data are then known.
        """
        if len(clients.nodes) >= min_nodes or not self._undrawn:
            return
        count_before = len(self._without_data.clients)
        failures = self._without_data.failures(clients.failures, clients.descriptions)
        if len(self._without_data.clients) == count_before:
            return
        if failures:
            log.warning("%s is drawn again: %s", purpose, name_reasons(failures))
        raise DrawAgainError(f"{purpose}: too few clients have data")

    def finish_round(self, clients: Clients) -> dict[int, str]:
        """Note the clients that finished; return why others with data failed."""
        self.last_trained_round.update(dict.fromkeys(clients.nodes, clients.server_round))
        return self._without_data.failures(clients.failures, clients.descriptions)

    def finish_evaluation(self, clients: Clients) -> None:
        """Note the clients of an evaluation without data, which need not be drawn again."""
        self._without_data.failures(clients.failures, clients.descriptions)

    @property
    def facts(self) -> dict[str, int]:
        """Entries for a run's summary."""
        return {"clients": len(self.last_trained_round), **self._without_data.facts}

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps."""
        node_state = {**self._federation.state(), **self._without_data.state()}
        return {
            "trained": text_keys(self.last_trained_round),
            "partitions": text_keys(self.partitions),
            **node_state,
        }

    def warn_of_unasked(self) -> None:
        """Log which clients a resumed run does not ask, as they had no data."""
        self._without_data.warn_of_unasked()

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's plain values."""
        self.last_trained_round = whole_keys(meta.get("trained", {}))
        self.partitions = whole_keys(meta.get("partitions", {}))
        self._federation.restore(meta)
        self._without_data.restore(meta)
