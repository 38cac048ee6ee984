"""Clients without training data: reported once per run, and not counted as failed."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping

from flwr_splitmix.clients import NO_DATA
from flwr_splitmix.server.remarks import name_clients

log = logging.getLogger("flwr.splitmix")


class WithoutData:
    """Keeps track of the clients that reported to have no training data.

    They are still drawn, so that the draws of others do not change, but no longer asked.

    Attributes
    ----------
    clients
        Their indices.
    """

    def __init__(self) -> None:
        self.clients: set[int] = set()

    def asked(self, drawn: Iterable[int]) -> list[int]:
        """Return those of the drawn clients that may have data, sorted."""
        return sorted(int(client) for client in drawn if int(client) not in self.clients)

    def failures(self, reasons: Mapping[int, str], attached: Container[int]) -> dict[int, str]:
        """Return the failures of clients with data; record and log clients without data once.

        Parameters
        ----------
        attached
            Clients that took part in the round: they had data, whatever they say now.
        """
        new = sorted(
            client
            for client, reason in reasons.items()
            if NO_DATA in reason and client not in attached
        )
        if new:
            self.clients.update(new)
            log.warning(
                "%s: no training data, so it takes no part in this run and is not asked again",
                name_clients(new),
            )
        return {client: reason for client, reason in reasons.items() if client not in new}

    @property
    def facts(self) -> dict[str, int]:
        """Entry for a run's summary: the number of these clients, if any."""
        return {"clients_without_data": len(self.clients)} if self.clients else {}
