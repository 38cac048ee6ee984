"""Peers that are waited for until a timeout is over: no memory and no other peer pays for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
import torch

from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.stream.absence import POSSIBLE_REASONS
from flwr_splitmix.links.stream.protocol import NODE_KEY, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.http2 import http2_request, message_head
from tests.links.stream.peers import Raw, a_round, call, good, no_threads_left, numbers


@pytest.fixture
def impatient() -> Iterator[StreamLink]:
    """Return a link with short timeouts."""
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=8, step_timeout=8, reattach_timeout=3, max_body=10**7
    )
    link.open(None)
    yield link
    link.close()
    no_threads_left()


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_a_frame_above_the_limit_is_not_read(impatient: StreamLink) -> None:
    def fat(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.hello()
        raw.hear()
        raw.say(b"\0" * (2 * 10**7))
        assert raw.refusal().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        raw.close()

    with a_round(impatient, [good, fat]) as clients:
        assert call(clients, 1) == {0: 1}
        assert "cut off" in clients.failures[1]


def test_two_gigabytes_announced_by_hand_cost_no_memory(impatient: StreamLink) -> None:
    """The length of a gRPC message precedes its bytes, and must not be trusted."""
    before = resident()

    def announce(ticket: Ticket, node: int) -> None:
        shown = {TOKEN_KEY: ticket.token, NODE_KEY: str(node), PROTOCOL_KEY: str(PROTOCOL)}
        host, port = ticket.address.split(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(http2_request(shown))
            peer.sendall(message_head((2 << 30) - 1, b"x" * 1000))
            peer.settimeout(60)
            while peer.recv(65536):
                pass

    with a_round(impatient, [good, announce]) as clients:
        assert clients.alive == (0,)
        assert call(clients, 1) == {0: 1}
    assert resident() - before < 100e6


def test_a_peer_that_never_reads_holds_nobody_up(impatient: StreamLink) -> None:
    left_out = threading.Event()

    def deaf(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.hello()
        left_out.wait(60)
        raw.close()

    value = numbers(8)
    with a_round(impatient, [good, deaf]) as clients:
        began = time.monotonic()
        (echoed,) = call(clients, value).values()
        assert torch.equal(echoed, value)
        assert time.monotonic() - began > 7.9
        assert clients.failures == {1: "did not answer echo within 8 s"}
        left_out.set()
        sizes = []
        for _ in range(3):
            for _ in range(20):
                call(clients, value)
            sizes.append(resident())
        assert sizes[2] - sizes[0] < 150e6  # 40 calls of 8 MB


def test_a_peer_that_never_says_hello_is_late(impatient: StreamLink) -> None:
    def mute(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.refusal()
        raw.close()

    with a_round(impatient, [good, mute]) as clients:
        assert clients.failures == {
            1: f"did not attach within 8 s (attach-timeout); {POSSIBLE_REASONS}"
        }
        assert call(clients, 1) == {0: 1}
