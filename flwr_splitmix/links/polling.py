"""Sending Flower messages and waiting for the replies, with our own bounded polling."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.ticket import RECORD


def send_and_wait(grid: Grid, messages: Sequence[Message], timeout: float) -> dict[int, Message]:
    """Push messages and pull replies until all are there or `timeout` seconds are over.

    Flower's own `send_and_receive` polls every 0.1 to 3 s; this looks every 0.02 to 0.2 s.

    Returns
    -------
    Replies by node id; nodes that did not answer are missing.
    """
    replies: dict[int, Message] = {}
    if not messages:
        return replies
    waiting = {message_id for message_id in grid.push_messages(list(messages)) if message_id}
    deadline = time.monotonic() + timeout
    pause = 0.02
    while waiting:
        for reply in grid.pull_messages(sorted(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            replies[reply.metadata.src_node_id] = reply
            pause = 0.02
        if waiting:
            if time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(pause * 1.3, 0.2)
    return replies


def error_sentence(reply: Message) -> str:
    """Return the last line of an error reply: what was raised, without the traceback."""
    lines = [
        line for line in (reply.error.reason or "no reason given").splitlines() if line.strip()
    ]
    return lines[-1].strip()[:300]


class Directory:
    """Which node holds which client: its `partition-id`, asked once for each node."""

    def __init__(self) -> None:
        self._clients: dict[int, int] = {}

    def update(self, grid: Grid, min_nodes: int, timeout: float) -> dict[int, int]:
        """Ask the nodes not known yet; wait up to `timeout` seconds for `min_nodes` of them.

        Returns
        -------
        client index -> node id of the nodes that are connected now, sorted by index.

        Raises
        ------
        LinkError
            If fewer than `min_nodes` answered in time, or two nodes claim one index.
        """
        deadline = time.monotonic() + timeout
        refusals: dict[int, str] = {}
        while True:
            nodes = set(grid.get_node_ids())
            unknown = sorted(nodes - self._clients.keys())
            left = max(deadline - time.monotonic(), 1.0)
            for node, reply in send_and_wait(grid, [_ask(n) for n in unknown], left).items():
                if reply.has_error():
                    refusals[node] = error_sentence(reply)
                elif error := reply.content.config_records[RECORD].get("error"):
                    refusals[node] = str(error)
                else:
                    self._clients[node] = int(str(reply.content.config_records[RECORD]["client"]))
            known = {c: n for n, c in sorted(self._clients.items()) if n in nodes}
            if len(known) < sum(n in nodes for n in self._clients):
                raise LinkError(
                    "two SuperNodes have the same partition-id; each needs its own in --node-config"
                )
            if len(known) >= min_nodes and known:
                return dict(sorted(known.items()))
            if time.monotonic() > deadline:
                why = "; ".join(sorted(set(refusals.values()))[:3])
                raise LinkError(
                    f"{len(known)} nodes answered within {timeout:g} s, min-nodes is {min_nodes}"
                    + (f": {why}" if why else "")
                )
            time.sleep(0.5)


def _ask(node: int) -> Message:
    return Message(
        RecordDict({RECORD: ConfigRecord({})}), dst_node_id=node, message_type=MessageType.QUERY
    )
