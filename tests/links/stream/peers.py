"""Peers for a stream link: good ones, raw ones that send anything, and a bad network."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from benchmarks.lines import Line, Relay
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.link import Clients, Outcome
from flwr_splitmix.links.stream.protocol import (
    METHOD,
    NODE_KEY,
    PROTOCOL,
    PROTOCOL_KEY,
    TOKEN_KEY,
)
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.server.messages import messages_to, with_tickets
from tests.links.fake_grid import FakeGrid
from tests.waiting import wait_for

DESCRIPTION = {"num-examples": 1, "state-round": 0}

Peer = Callable[[Ticket, int], None]
"""Takes part in a round: (ticket, node id)."""


def echo(method: str, arguments: Mapping[str, Any]) -> Outcome:
    return Outcome({"echo": arguments["value"]})


def good(ticket: Ticket, node: int) -> None:
    Session(ticket, node, DESCRIPTION, echo).run()


class Raw:
    """A connection that sends any given data."""

    def __init__(self, ticket: Ticket, node: int, **metadata: str) -> None:
        shown = {
            TOKEN_KEY: ticket.token,
            NODE_KEY: str(node),
            PROTOCOL_KEY: str(PROTOCOL),
            **{name.replace("_", "-"): value for name, value in metadata.items()},
        }
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.channel = grpc.insecure_channel(
            ticket.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stream = self.channel.stream_stream(METHOD)(
            iter(self.outbox.get, None), metadata=tuple(shown.items())
        )

    def say(self, data: bytes) -> None:
        self.outbox.put(data)

    def hello(self, number: int = 0) -> None:
        """Attach, and wait until the server has confirmed it."""
        self.say(encode(Frame("hello", number, payload=DESCRIPTION)))
        assert self.hear().kind == "hello"

    def hear(self) -> Frame:
        return decode(next(self.stream))

    def refusal(self) -> grpc.RpcError:
        """Return the error with which the server refuses this peer."""
        try:
            frame = next(self.stream)
        except grpc.RpcError as error:
            return error
        raise AssertionError(f"the server sent a frame: {decode(frame)}")

    def close(self) -> None:
        self.outbox.put(None)
        self.stream.cancel()
        self.channel.close()


@contextlib.contextmanager
def a_round(link: StreamLink, peers: Sequence[Peer], server_round: int = 1) -> Iterator[Clients]:
    """Run a round over a link, each client played by a peer in a thread of its own."""

    def handle(message: Message, context: Context) -> Message:
        ticket = Ticket.from_message(message)
        try:
            peers[ticket.client](ticket, context.node_id)
        except LinkError as error:
            return Message(
                RecordDict({RECORD: ConfigRecord({"error": str(error)})}), reply_to=message
            )
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid = FakeGrid(handle, len(peers))
    nodes = {index: 100 + index for index in range(len(peers))}
    ticket_of = partial(Ticket, seed=0, server_round=server_round, num_rounds=9)
    messages = messages_to(list(nodes.values()), RecordDict(), "train", in_run=False)
    messages = with_tickets(messages, nodes, ticket_of, lambda client: {})
    with link.round(grid.grid, messages) as clients:
        yield clients


def call(clients: Clients, value: Any, of: Sequence[int] | None = None) -> dict[int, Any]:
    """Let clients echo a value; return the echoes by client."""
    recipients = clients.alive if of is None else of
    replies = clients.call("echo", {client: {"value": value} for client in recipients})
    return {client: reply["echo"] for client, reply in replies.items()}


def numbers(megabytes: float) -> torch.Tensor:
    return torch.arange(int(megabytes * 250_000), dtype=torch.float32)


def delayed(seconds: float) -> Line:
    """Return a line of unlimited rate on which each byte takes `seconds`, either way."""
    return Line(down=math.inf, up=math.inf, rtt_ms=2000 * seconds)


class Proxy(Relay):
    """A relay in front of an address, whose connections can be cut, stalled and refused.

    Parameters
    ----------
    delay
        Seconds that each byte takes from end to end, either way; it does not limit the rate.
    """

    def __init__(self, target: str, delay: float = 0.0) -> None:
        host, port = target.rsplit(":", 1)
        self.open = True
        self.accepted = 0
        self.heard: dict[str, list[bytes]] = {"up": [], "down": []}
        super().__init__((host, int(port)), "127.0.0.1", delayed(delay), shapes=False)

    def admits(self) -> bool:
        self.accepted += self.open
        return self.open

    def hear(self, way: str, data: bytes) -> None:
        self.heard[way].append(data)

    def stall(self) -> None:
        """Confirm all bytes from now on, and deliver none."""
        self.line = delayed(3600)


def no_threads_left() -> None:
    """Check that a closed link has ended its threads."""
    wait_for(
        "the end of the link's threads",
        lambda: not any("splitmix-stream" in thread.name for thread in threading.enumerate()),
    )
