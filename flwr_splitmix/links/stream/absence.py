"""Nodes that will not attach to a round, and why."""

from __future__ import annotations

import time

from flwr.serverapp import Grid

from flwr_splitmix.links.polling import Mail, Online, why_not_attached
from flwr_splitmix.links.stream.replies import NOT_CONNECTED
from flwr_splitmix.words import not_attached

POSSIBLE_REASONS = (
    "a node may be starting still, not reach the link's address, or be busy in a round of another "
    "run; its own log may have more"
)
"""Possible reasons; a SuperNode handles one message at a time, and a round is one."""


class Absence:
    """Finds the nodes that were sent a message and will not attach.

    Parameters
    ----------
    mail
        The messages; the caller polls for replies.
    timeout
        Seconds, from now on, in which they may attach.
    """

    def __init__(self, grid: Grid, mail: Mail, timeout: float) -> None:
        self._mail = mail
        self._online = Online(grid)
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def reason(self, node: int) -> str:
        """Return why a node has not attached and will not; "" while it may."""
        reply = self._mail.replies.get(node)
        if reply is not None:
            return why_not_attached(reply)
        if self._online.has_lost(node):
            return NOT_CONNECTED
        if time.monotonic() <= self._deadline:
            return ""
        return f"{not_attached(self._timeout)}; {POSSIBLE_REASONS}"
