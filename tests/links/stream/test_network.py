"""Connections that break, return or never arrive."""

from __future__ import annotations

import queue
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.stream import protocol
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import (
    DESCRIPTION,
    Proxy,
    Raw,
    a_round,
    call,
    good,
    no_threads_left,
)
from tests.waiting import wait_for


@pytest.fixture
def link() -> Iterator[StreamLink]:
    """Return a link with timeouts long enough for a busy machine."""
    yield from opened(attach_timeout=60, step_timeout=60, reattach_timeout=60)


@pytest.fixture
def impatient() -> Iterator[StreamLink]:
    """Return a link with short timeouts for absent peers."""
    yield from opened(attach_timeout=8, step_timeout=60, reattach_timeout=3)


def opened(**options: Any) -> Iterator[StreamLink]:
    link = StreamLink(address="127.0.0.1:0", **options)
    link.open(None)
    yield link
    link.close()
    no_threads_left()


@pytest.fixture
def proxy(link: StreamLink) -> Iterator[Proxy]:
    yield from in_front_of(link)


@pytest.fixture
def impatient_proxy(impatient: StreamLink) -> Iterator[Proxy]:
    yield from in_front_of(impatient)


def in_front_of(link: StreamLink) -> Iterator[Proxy]:
    proxy = Proxy(link.dialled)
    yield proxy
    proxy.close()


class Counting:
    """A peer that echoes values, counts its calls, and can cut its connection before it answers."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.runs: Counter[int] = Counter()
        self.cut_in: set[int] = set()
        self.down_for = 0.0

    def __call__(self, ticket: Ticket, node: int) -> None:
        Session(replace(ticket, address=self.proxy.address), node, DESCRIPTION, self.answer).run()

    def answer(self, method: str, arguments: Mapping[str, Any]) -> Outcome:
        value = arguments["value"]
        self.runs[int(value)] += 1
        if value in self.cut_in:
            self.proxy.open = not self.down_for
            self.proxy.cut()
            if self.down_for:
                threading.Timer(self.down_for, setattr, (self.proxy, "open", True)).start()
        return Outcome({"echo": value})


def test_a_connection_that_breaks_in_a_step_costs_nothing_but_time(
    link: StreamLink, proxy: Proxy
) -> None:
    peer = Counting(proxy)
    peer.cut_in = {2, 5, 6}
    with a_round(link, [good, peer]) as clients:
        for value in range(10):
            assert call(clients, value) == {0: value, 1: value}
    assert peer.runs == Counter(range(10))
    assert proxy.accepted == 4
    assert len(clients.replies) == 2


def test_a_network_that_is_down_for_a_while(link: StreamLink, proxy: Proxy) -> None:
    peer = Counting(proxy)
    peer.cut_in, peer.down_for = {1}, 1.5
    with a_round(link, [good, peer]) as clients:
        for value in range(4):
            assert call(clients, value) == {0: value, 1: value}
    assert peer.runs == Counter(range(4))


def test_a_connection_that_breaks_between_steps(link: StreamLink, proxy: Proxy) -> None:
    peer = Counting(proxy)
    with a_round(link, [good, peer]) as clients:
        call(clients, 1)
        proxy.cut()
        wait_for("the next attach", lambda: proxy.accepted == 2)
        assert call(clients, 2) == {0: 2, 1: 2}
        proxy.cut()
    assert peer.runs == Counter([1, 2])
    assert len(clients.replies) == 2


def test_who_is_not_back_in_time_is_left_out(impatient: StreamLink, impatient_proxy: Proxy) -> None:
    peer = Counting(impatient_proxy)
    peer.cut_in, peer.down_for = {1}, 600.0
    with a_round(impatient, [good, peer]) as clients:
        began = time.monotonic()
        assert call(clients, 1) == {0: 1}
        assert time.monotonic() - began > 2.9
        assert clients.failures == {1: "was cut off and not back within 3 s"}
        assert call(clients, 2) == {0: 2}


@pytest.mark.timeout(60)
def test_a_connection_on_which_nothing_arrives_is_noticed_by_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes may be confirmed, by a gateway or a frozen process, for a minute more."""
    monkeypatch.setattr(protocol, "PING_SECONDS", 1)
    monkeypatch.setattr(protocol, "UNANSWERED_SECONDS", 2)
    link = StreamLink(address="127.0.0.1:0", attach_timeout=60, reattach_timeout=1)
    link.open(None)
    proxy = Proxy(link.dialled)
    gave_up: queue.SimpleQueue[str] = queue.SimpleQueue()

    def peer(ticket: Ticket, node: int) -> None:
        try:
            good(replace(ticket, address=proxy.address), node)
        except LinkError as error:
            gave_up.put(str(error))

    with a_round(link, [good, peer]) as clients:
        assert call(clients, 1) == {0: 1, 1: 1}
        proxy.stall()
        proxy.open = False
        assert call(clients, 2) == {0: 2}
        assert clients.failures == {1: "was cut off and not back within 1 s"}
        assert "could not reach the ServerApp" in gave_up.get(timeout=20)
    proxy.close()
    link.close()
    no_threads_left()


def test_a_node_that_is_killed_in_a_step(impatient: StreamLink) -> None:
    """The operating system closes its connection, and it does not dial again."""
    left_out = threading.Event()

    def dies(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.hello()
        raw.hear()
        raw.close()
        left_out.wait(60)  # a SuperNode would report at once that its ClientApp died

    with a_round(impatient, [good, dies]) as clients:
        assert call(clients, 1) == {0: 1}
        assert clients.failures == {1: "was cut off and not back within 3 s"}
        left_out.set()


def test_a_port_that_cannot_be_reached_is_named_and_dialling_again_draws_no_public_number(
    impatient: StreamLink, impatient_proxy: Proxy
) -> None:
    """Pauses between attempts are not drawn from the generator of a client's own draws."""
    state = random.getstate()
    nowhere = impatient_proxy.address
    impatient_proxy.close()

    def misled(ticket: Ticket, node: int) -> None:
        good(replace(ticket, address=nowhere), node)

    with a_round(impatient, [good, misled]) as clients:
        assert clients.failures[1].startswith(
            f"could not reach the ServerApp at {nowhere} within 4 s: "
        )
        assert "Check link-advertise and link-address of the run" in clients.failures[1]
    assert random.getstate() == state


def test_a_server_that_dies_frees_its_nodes(impatient: StreamLink) -> None:
    raised: queue.SimpleQueue[LinkError] = queue.SimpleQueue()

    def peer(ticket: Ticket, node: int) -> None:
        try:
            good(ticket, node)
        except LinkError as error:
            raised.put(error)
            raise

    with a_round(impatient, [peer]) as clients:
        call(clients, 1)
        impatient.close()
        message = str(raised.get(timeout=60))
        assert "could not reach the ServerApp" in message
        assert message.endswith(
            "It was reached before: the ServerApp may have ended, and its log says why"
        )


@pytest.mark.parametrize(
    ("address", "advertise", "dialled"),
    [
        ("localhost:0", None, "localhost:"),
        ("0.0.0.0:0", "127.0.0.1", "127.0.0.1:"),
        ("[::1]:0", None, "[::1]:"),
        ("[::]:0", "::1", "[::1]:"),
    ],
)
def test_addresses_of_every_kind(address: str, advertise: str | None, dialled: str) -> None:
    if "::" in address:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    link = StreamLink(address=address, advertise=advertise, insecure=True, attach_timeout=60)
    link.open(None)
    assert link.dialled.startswith(dialled)
    with a_round(link, [good]) as clients:
        assert call(clients, 1) == {0: 1}
    link.close()


def test_a_port_forward(link: StreamLink, proxy: Proxy) -> None:
    """Nodes dial another address than the one at which the link listens."""
    forwarded = StreamLink(address=link.dialled, advertise=proxy.address, attach_timeout=60)
    link.close()
    forwarded.open(None)
    with a_round(forwarded, [good]) as clients:
        assert call(clients, 1) == {0: 1}
    assert proxy.accepted == 1
    forwarded.close()


def a_call(number: int) -> bytes:
    payload = {"answered": number - 1, "arguments": {"value": number}}
    return encode(Frame("call", number, "echo", payload))


class Repeating(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that repeats calls."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.serve)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        for number in (1, 1, 2, 2):
            yield a_call(number)
            self.replies.append(next(requests))
        yield a_call(1)  # obsolete, so not answered
        yield a_call(3)
        self.replies.append(next(requests))
        yield encode(Frame("finish"))


def test_a_repeated_call_gets_the_stored_bytes() -> None:
    handler = Repeating()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    runs: list[int] = []

    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        runs.append(arguments["value"])
        return Outcome({"drawn": torch.randn(3)})

    ticket = Ticket(0, 0, 1, 1, link="stream", address=address, tls=False)
    Session(ticket, 1, {}, answer).run()
    server.stop(0).wait()
    assert runs == [1, 2, 3]
    assert handler.replies[0] == handler.replies[1]
    assert handler.replies[2] == handler.replies[3]
    assert [decode(data).number for data in handler.replies] == [1, 1, 2, 2, 3]
