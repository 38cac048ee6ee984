"""Peers for a stream link: good ones, raw ones that send what they like, and a bad network."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

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
    """A connection that says what it is told to say."""

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
        """Attach, and wait until the server has taken note."""
        self.say(encode(Frame("hello", number, payload=DESCRIPTION)))
        assert self.hear().kind == "hello"

    def hear(self) -> Frame:
        return decode(next(self.stream))

    def refusal(self) -> grpc.RpcError:
        """Return what the server says instead of anything else."""
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
    ticket = Ticket(client=-1, seed=0, server_round=server_round, num_rounds=9)
    messages = messages_to(list(nodes.values()), RecordDict(), "train", in_run=False)
    with link.round(grid.grid, with_tickets(messages, nodes, ticket)) as clients:
        yield clients


def call(clients: Clients, value: Any, of: Sequence[int] | None = None) -> dict[int, Any]:
    """Have clients echo a value; returns what came back, by client."""
    asked = clients.alive if of is None else of
    replies = clients.call("echo", {client: {"value": value} for client in asked})
    return {client: reply["echo"] for client, reply in replies.items()}


def numbers(megabytes: float) -> torch.Tensor:
    return torch.arange(int(megabytes * 250_000), dtype=torch.float32)


class Proxy:
    """A TCP proxy in front of an address, whose connections can be cut and refused.

    Parameters
    ----------
    delay
        Seconds that each byte takes from end to end, either way; any number are under way at once.
    """

    def __init__(self, target: str, delay: float = 0.0) -> None:
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = True
        self.delay = delay
        self.heard: dict[str, list[bytes]] = {"up": [], "down": []}
        self.connections: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if not self.open:
                    near.close()
                    continue
                self.accepted += 1
                far = socket.create_connection(self.target)
                self.connections += [near, far]
                for a, b, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._pump, args=(a, b, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """Pass on what one end sends, each piece when its time has come."""
        pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, args=(pieces, source, sink), daemon=True).start()
        data = b"-"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            self.heard[way].append(data)
            pieces.put((time.monotonic() + self.delay, data))

    @staticmethod
    def _deliver(
        pieces: queue.SimpleQueue[tuple[float, bytes]], source: socket.socket, sink: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while (piece := pieces.get())[1]:
                time.sleep(max(piece[0] - time.monotonic(), 0.0))
                sink.sendall(piece[1])
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break every connection that stands."""
        for end in self.connections:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()
        self.connections.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


def no_threads_left() -> None:
    """Check that a closed link has ended its threads."""
    wait_for(
        "the end of the link's threads",
        lambda: not any("splitmix-stream" in thread.name for thread in threading.enumerate()),
    )
