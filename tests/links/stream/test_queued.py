"""Queued calls: in order, in both directions at once, over connections that break."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.frames.codec import Frame, decode
from flwr_splitmix.links.link import Clients, Outcome
from flwr_splitmix.links.stream.protocol import MAX_UNHEARD
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.sandbox.superlink import free_port
from tests.links.stream.peers import (
    DESCRIPTION,
    Proxy,
    a_round,
    call,
    echo,
    good,
    no_threads_left,
)


@pytest.fixture
def link() -> Iterator[StreamLink]:
    link = StreamLink(address="127.0.0.1:0", attach_timeout=60, step_timeout=60)
    link.open(None)
    yield link
    link.close()
    no_threads_left()


def queue(clients: Clients, value: Any) -> None:
    clients.queue("echo", {client: {"value": value} for client in clients.alive})


def answered(clients: Clients) -> dict[int, Any]:
    return {client: reply["echo"] for client, reply in clients.answered().items()}


def test_replies_come_in_the_order_of_the_calls(link: StreamLink) -> None:
    with a_round(link, [good, good]) as clients:
        for value in range(5):
            queue(clients, value)
        assert [answered(clients) for _ in range(5)] == [{0: v, 1: v} for v in range(5)]
        with pytest.raises(IndexError):
            clients.answered()
        assert call(clients, "last") == {0: "last", 1: "last"}


def test_a_reply_arrives_while_the_client_works_on_the_next_call(link: StreamLink) -> None:
    go_on = threading.Event()

    def slow(ticket: Ticket, node: int) -> None:
        def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
            if arguments["value"] == 2:
                assert go_on.wait(60)
            return echo(method, arguments)

        Session(ticket, node, DESCRIPTION, answer).run()

    with a_round(link, [slow]) as clients:
        for value in (1, 2, 3):
            queue(clients, value)
        assert answered(clients) == {0: 1}
        go_on.set()
        assert [answered(clients) for _ in range(2)] == [{0: 2}, {0: 3}]


def test_who_fails_in_one_call_is_left_out_of_the_next(link: StreamLink) -> None:
    departure = threading.Event()

    def weak(ticket: Ticket, node: int) -> None:
        def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
            return Outcome(None, "is tired") if arguments["value"] == 2 else echo(method, arguments)

        with pytest.raises(LinkError):  # it is told, or refused when it dials again
            Session(ticket, node, DESCRIPTION, answer).run()
        departure.set()

    with a_round(link, [good, weak]) as clients:
        for value in (1, 2, 3):
            queue(clients, value)
        assert [answered(clients) for _ in range(3)] == [{0: 1, 1: 1}, {0: 2}, {0: 3}]
        assert clients.failures == {1: "is tired"}
        assert departure.wait(60)  # else it would go on dialling a link that is closed


def test_calls_in_flight_are_run_once_whatever_the_network_does() -> None:
    address = f"127.0.0.1:{free_port()}"
    proxy = Proxy(address)
    link = StreamLink(address=address, advertise=proxy.address, attach_timeout=60, step_timeout=60)
    link.open(None)
    ran: list[Any] = []

    def noting(ticket: Ticket, node: int) -> None:
        def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
            ran.append(arguments["value"])
            if arguments["value"] in (3, 11):
                proxy.cut()
            return echo(method, arguments)

        Session(ticket, node, DESCRIPTION, answer).run()

    with a_round(link, [noting]) as clients:
        for value in range(16):
            queue(clients, value)
        assert [answered(clients) for _ in range(16)] == [{0: value} for value in range(16)]
    assert ran == list(range(16))
    assert proxy.accepted >= 3
    proxy.close()
    link.close()
    no_threads_left()


def a_session() -> Session:
    ticket = Ticket(0, 0, 1, 1, link="stream", address="127.0.0.1:1", tls=False)
    return Session(ticket, 1, {}, echo)


def a_call(number: int, answered: Any = 0, arguments: Any = None) -> Frame:
    arguments = {"value": number} if arguments is None else arguments
    return Frame("call", number, "echo", {"answered": answered, "arguments": arguments})


def test_a_node_stores_replies_until_the_server_has_them() -> None:
    session = a_session()
    first, second = (session._reply_to(a_call(number)) for number in (1, 2))
    assert session._reply_to(a_call(1)) == first
    assert session._reply_to(a_call(2, answered=1)) == second
    assert session._reply_to(a_call(1)) is None
    assert session._reply_to(a_call(3, answered=2)) is not None
    assert session._reply_to(a_call(2)) is None


def test_a_node_stores_only_so_many_replies() -> None:
    session = a_session()
    for number in range(1, MAX_UNHEARD + 1):
        session._reply_to(a_call(number))
    with pytest.raises(LinkError, match="made 256 calls without acknowledging a reply"):
        session._reply_to(a_call(MAX_UNHEARD + 1))


def test_a_reply_of_more_words_than_the_server_takes_is_an_error_that_says_so() -> None:
    messages = a_session()._reply_to(a_call(1, arguments={"value": [[]] * 30_000}))
    assert messages is not None
    frame = decode(messages)
    assert frame.kind == "error"
    assert "its reply cannot travel: a frame's header has 90" in frame.text
    assert frame.text.endswith("bytes, at most 65536 are allowed")


@pytest.mark.parametrize("frame", [a_call(1, "0"), a_call(1, True), a_call(1, 0, [1]), a_call(2)])
def test_a_call_that_is_none_ends_the_session(frame: Frame) -> None:
    with pytest.raises(LinkError, match="the server sent"):
        a_session()._reply_to(frame)
