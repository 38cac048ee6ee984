"""The clients of a round over the stream: many calls at once, each with a deadline."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.links.frames.payload import payload_bytes
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import Clients, Observe, Outcome
from flwr_splitmix.links.stream.line import Line

Changes = queue.SimpleQueue[int]
"""Indices of clients whose lines have changed."""


class StreamClients(Clients):
    """Clients at the other ends of lines.

    Parameters
    ----------
    lines
        By client index.
    changes
        Where the lines say that they have changed.
    step_timeout, reattach_timeout
        Seconds for a call, and for a node whose connection broke to be back.
    """

    def __init__(
        self,
        server_round: int,
        descriptions: Mapping[int, dict[str, Any]],
        failures: Mapping[int, str],
        observe: Observe | None,
        *,
        lines: Mapping[int, Line],
        changes: Changes,
        wire_dtype: WireDtype,
        step_timeout: float,
        reattach_timeout: float,
    ) -> None:
        super().__init__(server_round, descriptions, failures, observe)
        self.lines = lines
        self.changes = changes
        self.wire_dtype = wire_dtype
        self.step_timeout = step_timeout
        self.reattach_timeout = reattach_timeout

    def fail(self, client: int, reason: str) -> None:
        """Leave a client out for the rest of the round, and tell it so."""
        super().fail(client, reason)
        self.lines[client].end("leave", reason)

    def _wire_bytes(self, payload: Mapping[str, Any]) -> int:
        return payload_bytes(payload, self.wire_dtype)

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        deadline = time.monotonic() + self.step_timeout
        for client, payload in payloads.items():
            self.lines[client].submit(method, payload)
        outcomes: dict[int, Outcome] = {}
        overdue: dict[int, float] = {}
        changed = set(payloads)
        while len(outcomes) < len(payloads):
            now = time.monotonic()
            for client in (changed & payloads.keys()) - outcomes.keys():
                overdue.pop(client, None)
                line = self.lines[client]
                outcome, lost_since = line.outcome, line.lost_since
                if outcome is not None:
                    outcomes[client] = outcome
                elif now >= deadline:
                    reason = f"did not answer {method} within {self.step_timeout:g} s"
                    outcomes[client] = Outcome(None, reason, self.step_timeout)
                elif lost_since is not None and now >= lost_since + self.reattach_timeout:
                    reason = f"was cut off and not back within {self.reattach_timeout:g} s"
                    outcomes[client] = Outcome(None, reason, self.reattach_timeout)
                elif lost_since is not None:
                    overdue[client] = lost_since + self.reattach_timeout
            if len(outcomes) < len(payloads):
                limit = min([deadline, *overdue.values()])
                changed = next_changes(self.changes, limit - now) or set(payloads)
        return outcomes


def next_changes(changes: Changes, timeout: float) -> set[int]:
    """Wait for a change; returns all that there are, or none after `timeout` seconds."""
    changed: set[int] = set()
    try:
        changed.add(changes.get(timeout=max(timeout, 0.0)))
        while True:
            changed.add(changes.get_nowait())
    except queue.Empty:
        return changed
