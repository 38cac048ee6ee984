"""Nodes' replies to a round's Flower messages, besides the frames on their lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.links.polling import Mail, Online, refusal, release_record

POLL_SECONDS = 0.05
"""Seconds between polls for replies while nodes attach or finish."""

NOT_CONNECTED = "is not connected to the SuperLink any more"


def collect(
    grid: Grid,
    mail: Mail,
    nodes: Mapping[int, int],
    fail: Callable[[int, str], None],
    timeout: float,
) -> dict[int, Message]:
    """Wait for the replies of nodes that have finished a round.

    Parameters
    ----------
    nodes
        Client index -> node id.
    fail
        Called with client and reason if a client's reply is a refusal or does not arrive.

    Returns
    -------
    The replies by client index.
    """
    replies: dict[int, Message] = {}
    waiting = dict(nodes)
    online = Online(grid)
    deadline = time.monotonic() + timeout
    while waiting:
        mail.poll()
        for client, node in list(waiting.items()):
            reply = mail.replies.get(node)
            if reply is not None and (reason := refusal(reply)) is not None:
                fail(client, reason)
            elif reply is not None:
                release_record(reply)
                replies[client] = reply
            elif online.has_lost(node):
                fail(client, NOT_CONNECTED)
            elif time.monotonic() > deadline:
                fail(client, f"did not finish its round in {timeout:g} s")
            else:
                continue
            del waiting[client]
        if waiting:
            time.sleep(POLL_SECONDS)
    return replies
