"""Clients without training data: reported once per run, and not counted as failed."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Any

from flwr_splitmix.clients import NO_DATA
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.words import are, have

log = logging.getLogger("flwr.splitmix")

_KEY = "without-data"


class WithoutData:
    """Keeps track of the clients that reported to have no training data.

    They are no longer drawn, even when the run is resumed.

    Attributes
    ----------
    clients
        Their indices.
    """

    def __init__(self) -> None:
        self.clients: set[int] = set()

    def failures(self, reasons: Mapping[int, str], attached: Container[int]) -> dict[int, str]:
        """Return the failures of clients with data; record and log each client without data once.

        Parameters
        ----------
        attached
            Clients that took part in the round: they had data, whatever they report now.
        """
        without = {
            client
            for client, reason in reasons.items()
            if NO_DATA in reason and client not in attached
        }
        if new := sorted(without - self.clients):
            self.clients.update(new)
            log.warning(
                "%s %s no training data and %s not asked again in this run",
                name_clients(new),
                have(len(new)),
                are(len(new)),
            )
        return {client: reason for client, reason in reasons.items() if client not in without}

    @property
    def facts(self) -> dict[str, int]:
        """Entry for a run's summary: the number of these clients, if any."""
        return {"clients_without_data": len(self.clients)} if self.clients else {}

    def state(self) -> dict[str, list[int]]:
        """Return the plain values that a checkpoint keeps."""
        return {_KEY: sorted(self.clients)} if self.clients else {}

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's plain values."""
        self.clients = {int(client) for client in meta.get(_KEY, ())}

    def warn_of_unasked(self) -> None:
        """Log which clients a resumed run does not ask."""
        if self.clients:
            log.warning(
                "%s had no training data when asked before and %s not asked now that the run is "
                "resumed; if there are data now, begin a new run",
                name_clients(sorted(self.clients)),
                are(len(self.clients)),
            )
