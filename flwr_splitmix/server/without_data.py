"""Clients that have no training data: said once in a run, and not counted as failed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr_splitmix.clients import NO_DATA
from flwr_splitmix.server.remarks import name_clients

log = logging.getLogger("flwr.splitmix")


class WithoutData:
    """Keeps which clients have said that they have no training data.

    They are drawn as before, so that the others' draws stay what they are, but asked no more.

    Attributes
    ----------
    clients
        By index.
    """

    def __init__(self) -> None:
        self.clients: set[int] = set()

    def asked(self, drawn: Iterable[int]) -> list[int]:
        """Return those of the drawn clients that may have data, sorted."""
        return sorted(int(client) for client in drawn if int(client) not in self.clients)

    def failures(self, reasons: Mapping[int, str]) -> dict[int, str]:
        """Return why clients failed, less those without data, which are noted and named once."""
        new = sorted(client for client, reason in reasons.items() if NO_DATA in reason)
        if new:
            self.clients.update(new)
            log.warning(
                "%s: no training data, so it takes no part in this run and is not asked again",
                name_clients(new),
            )
        return {client: reason for client, reason in reasons.items() if client not in new}

    @property
    def facts(self) -> dict[str, int]:
        """What a run's summary says of them: their number, if there are any."""
        return {"clients_without_data": len(self.clients)} if self.clients else {}
