"""Statistics of each client in a run: rounds, seconds, and reasons of failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers.observer import Observer

KEPT_REASONS = 5
"""Number of a client's newest failures whose reasons are kept."""


@dataclass
class _Client:
    """One client's record."""

    rounds: int = 0
    seconds: float = 0.0
    slowest: int = 0
    failed: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


class ClientTimes(Observer):
    """Counts by client index the rounds, the seconds in exchanges, and the failures.

    Its state is stored in a run's record.json under "clients", by index: the number of `rounds`
    that the client finished, the `seconds` of its exchanges (including rounds in which it failed),
    how often it was the `slowest`, how often it `failed`, and the newest `failures` as
    [round, reason].
    """

    def __init__(self) -> None:
        self._clients: dict[int, _Client] = {}

    def on_round(self, event: RoundDone) -> None:
        """Count a round."""
        times = event.client_seconds
        slowest = max(times, key=lambda client: (times[client], -client), default=None)
        for client, seconds in times.items():
            record = self._clients.setdefault(client, _Client())
            record.seconds += seconds
            record.rounds += client not in event.failures
            record.slowest += client == slowest
        for client, reason in event.failures.items():
            record = self._clients.setdefault(client, _Client())
            record.failed += 1
            record.failures = [*record.failures, (event.server_round, reason)][-KEPT_REASONS:]

    def state(self) -> dict[str, Any]:
        """Return all records by client index."""
        return {
            str(client): vars(record).copy() for client, record in sorted(self._clients.items())
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._clients = {
            int(client): _Client(
                **{**record, "failures": [(int(r), str(why)) for r, why in record["failures"]]}
            )
            for client, record in state.items()
        }
