"""The node's end: servers that refuse it for a while, say nothing, or acknowledge nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.stream import session, silence
from flwr_splitmix.links.stream.dialling import PROXIES, proxy_variable
from flwr_splitmix.links.stream.session import Answer, Session
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import DESCRIPTION, echo

Says = Callable[[int, Any], Iterator[bytes]]
"""What a server says on a node's stream: (number of the stream from 0, context) -> messages."""

HELLO = encode(Frame("hello"))


class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves streams as a test says; `over` is set when the test ends."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.streams = 0
        self.says: Says | None = None

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.serve)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        number, self.streams = self.streams, self.streams + 1
        assert self.says is not None
        yield from self.says(number, context)


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    handler, server = Server(), grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    handler.over.set()
    server.stop(0).wait()


def attach(address: str, answer: Answer = echo, *, tls: bool = False, **limits: float) -> None:
    ticket = Ticket(0, 0, 1, 1, link="stream", address=address, tls=tls, token="x.y", **limits)  # type: ignore[arg-type]
    Session(ticket, 1, DESCRIPTION, answer).run()


def holds_the_old_connection(seconds: float) -> Says:
    """Break the first stream, refuse others for a while, and then finish the round."""
    broke = [0.0]

    def says(number: int, context: Any) -> Iterator[bytes]:
        if number == 0:
            yield HELLO
            broke[0] = time.monotonic()
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        if time.monotonic() < broke[0] + seconds:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "another connection stands")
        yield HELLO
        yield encode(Frame("finish"))

    return says


@pytest.mark.timeout(60)
def test_a_node_is_back_before_the_server_has_noticed_that_it_was_away(
    server: tuple[Server, str],
) -> None:
    """Its address may have changed, and the server may notice it later than its patience lasts."""
    handler, address = server
    handler.says = holds_the_old_connection(4.0)
    attach(address, timeout=30, patience=2)
    assert handler.streams > 3


@pytest.mark.timeout(60)
def test_a_node_does_not_wait_forever_for_a_server_to_notice(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "NOTICE_SECONDS", 1.0)
    handler, address = server
    handler.says = holds_the_old_connection(600.0)
    began = time.monotonic()
    with pytest.raises(LinkError, match=r"within 0\.5 s: another connection stands$"):
        attach(address, timeout=30, patience=0.5)
    assert time.monotonic() - began > 1.0


@pytest.mark.timeout(60)
def test_no_proxy_hears_what_a_node_sends_without_tls(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's, taken even to the loopback, would read the token and all uploads."""
    handler, address = server

    def says(number: int, context: Any) -> Iterator[bytes]:
        yield HELLO
        yield encode(Frame("finish"))

    handler.says = says
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.1)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        attach(address, timeout=30, patience=5)
        with pytest.raises(TimeoutError):
            proxy.accept()
    assert handler.streams == 1


@pytest.mark.timeout(60)
def test_a_server_that_takes_the_connection_and_says_nothing(server: tuple[Server, str]) -> None:
    """It answers pings, so its node would wait for ever."""
    handler, address = server

    def says(number: int, context: Any) -> Iterator[bytes]:
        handler.over.wait()
        yield HELLO

    handler.says = says
    with pytest.raises(LinkError, match=r"within 1 s: no message came from it"):
        attach(address, timeout=1)


@pytest.fixture
def full() -> Iterator[str]:
    """Yield an address at which connections are dropped, as by a firewall: its queue is full."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


CHECK = r"\. Check link-advertise and link-address of the run .*, and the firewalls on the way"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("address", ["nosuch.invalid:9443", "127.0.0.1:1"])
def test_an_address_that_is_not_reached_names_the_keys_that_it_is_from(address: str) -> None:
    """Of a name that nobody knows, too: gRPC has other words for it."""
    with pytest.raises(LinkError, match=f"could not reach .*{CHECK}"):
        attach(address, timeout=0.5)


@pytest.mark.timeout(60)
def test_a_proxy_that_refuses_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPC reports the proxy's answer as if it were the server's."""
    with socket.create_server(("127.0.0.1", 0)) as proxy, ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy.getsockname()[1]}")
        refused = pool.submit(_refuse_all, proxy)
        try:
            with pytest.raises(LinkError) as caught:
                attach("server.example:9443", timeout=1, tls=True)
        finally:
            proxy.shutdown(socket.SHUT_RDWR)
        assert refused.result()
    message = str(caught.value)
    assert "response code 403" in message
    assert "through its https_proxy, unless no_proxy names the server" in message
    assert "secret" not in message


def test_a_proxy_is_that_of_the_first_variable_even_if_it_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GRPC takes none then, and a proxy that nobody dials through is not named."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert proxy_variable(tls=True) == ""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert proxy_variable(tls=True) == "https_proxy"
    assert proxy_variable(tls=False) == ""
    monkeypatch.setenv("grpc_proxy", "")
    assert proxy_variable(tls=True) == ""


def _refuse_all(proxy: socket.socket) -> int:
    """Refuse connections as a proxy does until its socket is shut down; return their number."""
    number = 0
    with suppress(OSError):
        while True:
            connection, _ = proxy.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            number += 1
    return number


@pytest.mark.timeout(60)
def test_a_firewall_that_drops_what_it_gets_is_named(full: str) -> None:
    with pytest.raises(LinkError, match=f"could not reach .*{CHECK}"):
        attach(full, timeout=1)


@pytest.mark.timeout(60)
def test_a_server_that_falls_silent(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_SILENCE_SECONDS", 1.8)
    handler, address = server

    def says(number: int, context: Any) -> Iterator[bytes]:
        yield HELLO
        handler.over.wait()

    handler.says = says
    with pytest.raises(LinkError, match=r"sent nothing for 0\.0005 h and kept the connection"):
        attach(address, timeout=30)
    assert handler.streams == 1


def test_a_server_may_be_silent_for_longer_than_its_ticket_says(server: tuple[Server, str]) -> None:
    """It waits for other clients meanwhile; the ticket limits how long a node dials."""
    handler, address = server

    def says(number: int, context: Any) -> Iterator[bytes]:
        yield HELLO
        time.sleep(5)
        yield encode(Frame("finish"))

    handler.says = says
    attach(address, timeout=4, patience=4)
    assert handler.streams == 1


def test_a_node_that_computes_for_long_is_not_a_silent_server(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.1)
    handler, address = server

    def says(number: int, context: Any) -> Iterator[bytes]:
        yield HELLO
        arguments = {"answered": 0, "arguments": {"value": 1}}
        yield encode(Frame("call", 1, "echo", arguments))
        yield encode(Frame("finish"))

    def slow(method: str, arguments: Mapping[str, Any]) -> Outcome:
        clock[0] += 2 * session.MAX_SILENCE_SECONDS
        time.sleep(1.5)  # its limit is looked at meanwhile
        return echo(method, arguments)

    handler.says = says
    attach(address, slow, timeout=30)
    assert handler.streams == 1


def test_a_node_stores_only_so_many_bytes() -> None:
    """A server that acknowledges nothing could fill its memory with 256 replies of 1 GiB."""
    ticket = Ticket(0, 0, 1, 1, link="stream", address="127.0.0.1:1", tls=False)
    node_session = Session(
        ticket, 1, {}, lambda *_: Outcome({"x": torch.zeros(100)}), max_body=1000
    )

    def called(number: int, answered: int = 0) -> Any:
        arguments = {"answered": answered, "arguments": {}}
        return node_session._reply_to(Frame("call", number, "echo", arguments))

    assert called(1)
    assert called(2)
    assert called(3, answered=2)
    assert called(4, answered=2)
    with pytest.raises(
        LinkError, match=r"replies of 1\d\d\d bytes; a node stores 1000, so a batch"
    ):
        called(5, answered=2)
