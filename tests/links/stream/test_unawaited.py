"""Calls whose answers are not waited for: those of late clients, and those that bring something."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flwr_splitmix.events import Exchange
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.link import Clients, Outcome, Patience
from flwr_splitmix.links.stream.clients import StreamClients
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import (
    DESCRIPTION,
    Peer,
    a_round,
    call,
    echo,
    good,
    no_threads_left,
)
from tests.waiting import wait_for


@pytest.fixture
def link() -> Iterator[StreamLink]:
    yield from opened(60.0)


@pytest.fixture
def impatient() -> Iterator[StreamLink]:
    yield from opened(5.0)


def opened(step_timeout: float) -> Iterator[StreamLink]:
    link = StreamLink(address="127.0.0.1:0", attach_timeout=60, step_timeout=step_timeout)
    link.open(None)
    yield link
    link.close()
    no_threads_left()


class Slow:
    """A peer that answers the value "slowly" when it may, and notes what it ran."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.ran: list[Any] = []

    def __call__(self, ticket: Ticket, node: int) -> None:
        Session(ticket, node, DESCRIPTION, self.answer).run()

    def answer(self, method: str, arguments: Mapping[str, Any]) -> Outcome:
        if arguments["value"] == "slowly":
            assert self.go_on.wait(60)
        self.ran.append(arguments["value"])
        return echo(method, arguments)

    def go_on_soon(self) -> None:
        """Answer while the server waits for it; earlier, if the server is late, does no harm."""
        threading.Timer(0.3, self.go_on.set).start()


def answers(clients: Clients, value: Any, least: int = 1) -> dict[int, Any]:
    payloads = {client: {"value": value} for client in clients.alive}
    patience = Patience(3.0, least)
    return {c: r["echo"] for c, r in clients.answers("echo", payloads, patience=patience)}


def test_a_late_answer_is_dropped_and_its_client_goes_on(link: StreamLink) -> None:
    events: list[Exchange] = []
    with a_round(link, [good, good, good, slow := Slow()]) as clients:
        clients._observe = events.append
        call(clients, "first")
        assert answers(clients, "slowly", least=3) == dict.fromkeys(range(3), "slowly")
        assert clients.busy == {3}
        assert clients.alive == (0, 1, 2, 3)
        assert call(clients, "others", of=(0, 1, 2)) == dict.fromkeys(range(3), "others")
        slow.go_on.set()
        wait_for("the late answer", lambda: not clients.busy)
        assert answers(clients, "all", least=4) == dict.fromkeys(range(4), "all")
    assert clients.late == {3: 1}
    assert clients.failures == {}
    # What came late was sent, and is seen and counted: once down, once up.
    observed = [(e.direction, next(iter(e.payload.values()))) for e in events if e.client == 3]
    both = [(way, value) for value in ("first", "slowly", "all") for way in ("down", "up")]
    assert observed == both


def test_an_answer_that_came_while_the_server_computed_is_not_late(link: StreamLink) -> None:
    """The wait begins at the second answer: after one alone nobody is late at any time."""
    with a_round(link, [good, good, slow := Slow()]) as clients:
        call(clients, "first")
        came: list[int] = []
        assert isinstance(clients, StreamClients)
        lines = clients.lines.values()
        payloads = {client: {"value": "slowly"} for client in clients.alive}
        began = time.monotonic()
        for client, _ in clients.answers("echo", payloads, patience=Patience(3.0, 1)):
            came.append(client)
            if len(came) == 2:
                # The others were asked after `began`, and took no longer than until now.
                late = began + 4 * (time.monotonic() - began)
                slow.go_on.set()
                wait_for("all answers", lambda: not any(line._in_flight for line in lines))
                time.sleep(max(late - time.monotonic(), 0.0))
        assert sorted(came) == [0, 1, 2]
        assert clients.late == {}


def test_a_busy_client_that_is_asked_is_waited_for(link: StreamLink) -> None:
    with a_round(link, [good, good, slow := Slow()]) as clients:
        assert sorted(answers(clients, "slowly", least=2)) == [0, 1]
        slow.go_on_soon()
        assert call(clients, "all") == dict.fromkeys(range(3), "all")
        assert clients.busy == frozenset()


def test_fewer_answers_than_are_needed_are_waited_for(link: StreamLink) -> None:
    with a_round(link, [good, slow := Slow()]) as clients:
        slow.go_on_soon()
        assert answers(clients, "slowly", least=2) == dict.fromkeys(range(2), "slowly")
        assert clients.late == {}


def test_who_is_late_and_never_answers_is_left_out(impatient: StreamLink) -> None:
    with a_round(impatient, [good, good, never := Slow()]) as clients:
        assert sorted(answers(clients, "slowly", least=2)) == [0, 1]
        assert clients.alive == (0, 1, 2)
        assert call(clients, "all") == dict.fromkeys(range(2), "all")
        assert clients.failures == {2: "did not answer echo within 5 s"}
        never.go_on.set()


@pytest.mark.parametrize(("others", "failing"), [(2, 2), (1, 1)])
def test_who_fails_does_not_keep_others_from_being_late(
    impatient: StreamLink, others: int, failing: int
) -> None:
    """A step waits for no more answers than the clients that have not failed can give."""

    def fails(ticket: Ticket, node: int) -> None:
        Session(ticket, node, DESCRIPTION, lambda *_: Outcome(None, "out of memory")).run()

    slow = Slow()
    peers: list[Peer] = [*[good] * others, *[fails] * failing, slow]
    with a_round(impatient, peers) as clients:
        assert sorted(answers(clients, "slowly")) == list(range(others))
        last = len(peers) - 1
        assert clients.late == {last: 1}
        assert clients.alive == (*range(others), last)
        slow.go_on.set()
        assert sorted(call(clients, "all")) == [*range(others), last]


def test_who_is_late_with_an_error_is_asked_nothing_more(link: StreamLink) -> None:
    events: list[Exchange] = []

    class Failing(Slow):
        def answer(self, method: str, arguments: Mapping[str, Any]) -> Outcome:
            super().answer(method, arguments)
            return Outcome(None, "out of memory")

    with a_round(link, [good, good, failing := Failing()]) as clients:
        assert sorted(answers(clients, "slowly", least=2)) == [0, 1]
        clients._observe = events.append
        failing.go_on_soon()
        began = time.monotonic()
        assert call(clients, "all") == dict.fromkeys(range(2), "all")
        assert time.monotonic() < began + 0.5 * link.reattach_timeout
        assert clients.failures == {2: "out of memory"}
        assert failing.ran == ["slowly"]
    assert {event.client for event in events} == {0, 1}


def test_what_is_posted_comes_before_the_next_call(link: StreamLink) -> None:
    with a_round(link, [good, slow := Slow()]) as clients:
        call(clients, "first")
        clients.post("echo", {client: {"value": "slowly"} for client in clients.alive})
        assert slow.ran == ["first"]  # nobody has waited for it
        arrived = []
        for client, _ in clients.answers("echo", {c: {"value": 1} for c in (0, 1)}):
            arrived.append(client)
            slow.go_on.set()
        assert arrived == [0, 1]
        assert slow.ran == ["first", "slowly", 1]
    assert clients.failures == {}


@pytest.mark.parametrize(
    ("least", "clients", "needed"), [(1, 4, 2), (1, 5, 3), (3, 4, 3), (9, 4, 4), (1, 1, 1)]
)
def test_half_of_all_must_have_answered_before_anyone_is_late(
    least: int, clients: int, needed: int
) -> None:
    assert Patience(2.0, least).answers_needed(clients) == needed


def broken(ticket: Ticket, node: int) -> None:
    Session(ticket, node, DESCRIPTION, lambda method, arguments: Outcome(None, "broken")).run()


def test_failures_say_nothing_of_how_long_an_answer_takes(link: StreamLink) -> None:
    """The others are not late as soon as half of the clients have failed."""
    slow = [Slow(), Slow()]
    with a_round(link, [broken, broken, *slow]) as clients:
        for one in slow:
            one.go_on_soon()
        assert answers(clients, "slowly") == {2: "slowly", 3: "slowly"}
    assert clients.late == {}
    assert clients.failures == {0: "broken", 1: "broken"}
