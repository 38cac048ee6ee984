"""Connections without a token must not take the descriptors that nodes need."""

from __future__ import annotations

import contextlib
import socket

from flwr_splitmix.links.stream.server import IDLE_SECONDS
from tests.hostile.served import served
from tests.links.stream.http2 import PREFACE, SETTINGS, http2_frame
from tests.links.stream.peers import good
from tests.waiting import wait_for

CONNECTIONS, DESCRIPTORS = 300, 256
GREETING = PREFACE + http2_frame(SETTINGS, 0, b"", 0)


def stands(peer: socket.socket) -> bool:
    """Return whether the server has not hung up."""
    try:
        while data := peer.recv(65536):
            assert data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def test_idle_connections_without_a_token_keep_no_node_out() -> None:
    """1,200 of them would hold every descriptor of a server with 1,024."""
    with served(nodes=1, descriptors=DESCRIPTORS) as server, contextlib.ExitStack() as opened:
        ticket, node = server.ticket()
        host, port = ticket.address.split(":")
        flood = []
        for _ in range(CONNECTIONS):
            peer = opened.enter_context(socket.create_connection((host, int(port)), 30))
            with contextlib.suppress(ConnectionError):  # above the bound it hangs up at once
                peer.sendall(GREETING)
            peer.setblocking(False)
            flood.append(peer)
        wait_for(
            "the end of what is above the bound",
            lambda: sum(map(stands, flood)) <= DESCRIPTORS * 3 // 4,
            IDLE_SECONDS / 2,
        )
        good(ticket, node)
        ended = server.hear()
        assert ended["alive"] == [0]
        assert ended["calls"] > 0
        assert ended["attach_seconds"] < 3 * IDLE_SECONDS
        print(f"a good node attached after {ended['attach_seconds']:.1f} s of a flood")
        wait_for("the end of the flood", lambda: not any(map(stands, flood)), 2 * IDLE_SECONDS)
