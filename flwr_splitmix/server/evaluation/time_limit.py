"""A time limit on clients' work besides training: evaluation, and calibration before it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr_splitmix.links import Clients

MAX_SECONDS = 3600.0
"""Limit of an evaluation, and of calibration after the steps that the median client needs.

Clients that have not finished by then are left out.
"""


class TimeLimit:
    """A limit of `MAX_SECONDS`, starting now."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_SECONDS

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._end

    def leave_out(self, clients: Clients, late: Iterable[int], work: str = "tests") -> None:
        """Fail the clients that are late with their tests, or with something else."""
        for client in late:
            clients.fail(client, f"was not through its {work} within {MAX_SECONDS:g} s")
