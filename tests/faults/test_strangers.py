"""Strangers at the port of a real run: a peer without a token gets nothing, costs nothing."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import grpc

from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.stream.protocol import METHOD, NODE_KEY, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.links.stream.token import FOREIGN, TokenMint
from flwr_splitmix.sandbox.superlink import free_port
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.e2e.flower_run import Deployed, measured
from tests.faults.faulty_run import APP, START_SECONDS, run_here, server_process, steps_in
from tests.links.stream.http2 import http2_request, message_head

GARBAGE_CONNECTIONS = 200
SILENT_CONNECTIONS = 100
STEPS_PER_ROUND = 80


def forged() -> str:
    """Make a token of another run."""
    mint = TokenMint(3600.0)
    return mint.token(mint.admission(1, 0, 1, "train"))


def unsigned() -> str:
    """Make a token that says what a right one says, without the run's mark."""
    claims = {"run": "x", "node": 1, "client": 0, "server_round": 1, "kind": "train"}
    text = urlsafe_b64encode(json.dumps({**claims, "expires": 1e12}).encode()).decode()
    return f"{text}.{'0' * 64}"


def attach(address: str, ca: bytes, token: str) -> grpc.RpcError:
    """Dial as a node does; returns how the server refuses."""
    metadata = ((TOKEN_KEY, token), (NODE_KEY, "1"), (PROTOCOL_KEY, str(PROTOCOL)))
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
        hello = iter([encode(Frame("hello", payload={"state-round": 0}))])
        try:
            frame = next(channel.stream_stream(METHOD)(hello, metadata=metadata, timeout=30))
        except grpc.RpcError as error:
            return error
    raise AssertionError(f"the server let a stranger in: {frame[:100]!r}")


@contextlib.contextmanager
def tls_connection(address: str, ca: Path) -> Iterator[ssl.SSLSocket]:
    """Open a TLS connection that speaks HTTP/2 by hand."""
    host, port = address.split(":")
    trust = ssl.create_default_context(cafile=ca)
    trust.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), 60) as bare,
        trust.wrap_socket(bare, server_hostname=host) as secured,
    ):
        yield secured


def said_to(peer: socket.socket) -> int:
    """Return how many bytes the server says to a stream that it refuses; it may hang up or not."""
    peer.settimeout(60)
    total = 0
    with contextlib.suppress(TimeoutError, ConnectionError, ssl.SSLError):
        while data := peer.recv(65536):
            total += len(data)
            peer.settimeout(3)
    return total


def test_strangers_at_the_port_of_a_run_change_nothing(
    deployed: Deployed, home: Path, tmp_path: Path, app: ModuleType
) -> None:
    address = f"127.0.0.1:{free_port()}"
    values = {"rounds": 1, "steps": STEPS_PER_ROUND, "pause": 0.5, "min-nodes": 3}
    run_id = deployed.start({**values, "link-address": address, "run-dir": str(home)}, APP)
    deployed.reach(run_id, "step 3", lambda: len(steps_in(home, 0, 1)) >= 3, START_SECONDS)
    server = server_process(deployed.flower)
    before = server.memory_info().rss
    files = deployed.flower.certificates
    host, port = address.split(":")

    with contextlib.ExitStack() as open_ones:
        for _ in range(SILENT_CONNECTIONS):
            open_ones.enter_context(socket.create_connection((host, int(port)), 60))
        for token in ("", "nonsense", forged(), unsigned()):
            refused = attach(address, files.ca.read_bytes(), token)
            assert refused.code() == grpc.StatusCode.UNAUTHENTICATED
            assert refused.details() == FOREIGN
        rng = random.Random(1)
        for _ in range(GARBAGE_CONNECTIONS):
            rude = open_ones.enter_context(socket.create_connection((host, int(port)), 60))
            with contextlib.suppress(ConnectionError):
                rude.sendall(rng.randbytes(rng.randint(1, 5000)))
        for token in ("", forged()):
            with tls_connection(address, files.ca) as peer:
                shown = {TOKEN_KEY: token, NODE_KEY: "1", PROTOCOL_KEY: str(PROTOCOL)}
                peer.sendall(http2_request(shown))
                peer.sendall(message_head((2 << 30) - 1, b"x" * 1000))
                assert 0 < said_to(peer) < 10_000
        assert server.memory_info().rss - before < 150e6
        assert len(steps_in(home, 0, 1)) <= STEPS_PER_ROUND, (
            "the round was over too early to be disturbed"
        )
        ended = deployed.finish(run_id, home)

    assert ended.status == "finished:completed", ended.log
    assert ended.run is not None
    assert [row["clients_alive"] for row in ended.run.rows] == [3]
    whole = run_here(app, values, tmp_path)
    assert measured(ended.run) == measured(whole)
    check_same_results(read_results(whole), deployed.results(ended.run))


def test_a_token_is_no_good_to_another_node(deployed: Deployed, home: Path) -> None:
    ended = deployed.run({"rounds": 1, "impostor": True}, home, app=APP)
    assert ended.status == "finished:completed", ended.log
    assert ended.run is not None
    assert [row["clients_alive"] for row in ended.run.rows] == [2]
    assert "round 1 continued without client 1: the token was made for another node" in ended.log


def test_a_token_that_has_expired_lets_nobody_in(deployed: Deployed, home: Path) -> None:
    ended = deployed.run({"rounds": 1, "token-seconds": 0.001}, home, app=APP)
    assert ended.status == "finished:failed", ended.log
    assert "round 1: 0 clients are left, min-nodes is 2" in ended.log
    assert re.search(r"min-nodes is 2: clients? 0[\d, and]*: the token has expired", ended.log)
