"""Calls whose answers are not awaited: those to late clients, and those that deliver data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flwr_splitmix.events import Exchange
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.link import Clients, Outcome, Patience
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import (
    DESCRIPTION,
    a_round,
    call,
    echo,
    good,
    no_threads_left,
)
from tests.waiting import wait_for

SLOW = 0.8


@pytest.fixture
def link() -> Iterator[StreamLink]:
    yield from opened(60.0)


@pytest.fixture
def impatient() -> Iterator[StreamLink]:
    yield from opened(1.5)


def opened(step_timeout: float) -> Iterator[StreamLink]:
    link = StreamLink(address="127.0.0.1:0", attach_timeout=60, step_timeout=step_timeout)
    link.open(None)
    yield link
    link.close()
    no_threads_left()


def slow(ticket: Ticket, node: int) -> None:
    """Take part as a peer that is slow to answer the value "slowly"."""

    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        time.sleep(SLOW if arguments["value"] == "slowly" else 0)
        return echo(method, arguments)

    Session(ticket, node, DESCRIPTION, answer).run()


def never(ticket: Ticket, node: int) -> None:
    """Take part as a peer that answers the value "slowly" long after any deadline."""

    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        time.sleep(4.0 if arguments["value"] == "slowly" else 0)
        return echo(method, arguments)

    Session(ticket, node, DESCRIPTION, answer).run()


def answers(clients: Clients, value: Any, least: int = 1) -> dict[int, Any]:
    payloads = {client: {"value": value} for client in clients.alive}
    patience = Patience(3.0, least)
    return {c: r["echo"] for c, r in clients.answers("echo", payloads, patience=patience)}


def test_a_late_answer_is_dropped_and_its_client_goes_on(link: StreamLink) -> None:
    told: list[Exchange] = []
    with a_round(link, [good, good, good, slow]) as clients:
        clients._observe = told.append
        call(clients, "first")
        assert answers(clients, "slowly") == {0: "slowly", 1: "slowly", 2: "slowly"}
        assert clients.busy == {3}
        assert clients.alive == (0, 1, 2, 3)
        assert call(clients, "others", of=(0, 1, 2)) == dict.fromkeys(range(3), "others")
        wait_for("the late answer", lambda: not clients.busy)
        assert answers(clients, "all", least=4) == dict.fromkeys(range(4), "all")
    assert clients.late == {3: 1}
    assert clients.failures == {}
    # A late answer was sent, too, and is seen and counted: once down, once up.
    own = [(e.direction, next(iter(e.payload.values()))) for e in told if e.client == 3]
    both = [(way, value) for value in ("first", "slowly", "all") for way in ("down", "up")]
    assert own == both


def test_an_answer_that_came_while_the_server_computed_is_not_late(link: StreamLink) -> None:
    with a_round(link, [good, good, slow]) as clients:
        call(clients, "first")
        came: list[int] = []
        payloads = {client: {"value": "slowly"} for client in clients.alive}
        for client, _ in clients.answers("echo", payloads, patience=Patience(3.0, 1)):
            time.sleep(0 if came else 1.5 * SLOW)
            came.append(client)
        assert sorted(came) == [0, 1, 2]
        assert clients.late == {}


def test_a_busy_client_that_is_asked_is_waited_for(link: StreamLink) -> None:
    with a_round(link, [good, good, slow]) as clients:
        assert sorted(answers(clients, "slowly")) == [0, 1]
        assert call(clients, "all") == dict.fromkeys(range(3), "all")
        assert clients.busy == frozenset()


def test_fewer_answers_than_are_needed_are_waited_for(link: StreamLink) -> None:
    with a_round(link, [good, slow]) as clients:
        assert answers(clients, "slowly", least=2) == dict.fromkeys(range(2), "slowly")
        assert clients.late == {}


def test_who_is_late_and_never_answers_is_left_out(impatient: StreamLink) -> None:
    with a_round(impatient, [good, good, never]) as clients:
        assert sorted(answers(clients, "slowly")) == [0, 1]
        assert clients.alive == (0, 1, 2)
        assert call(clients, "all") == dict.fromkeys(range(2), "all")
        assert clients.failures == {2: "did not answer echo within 1.5 s"}


def test_what_is_posted_comes_before_the_next_call(link: StreamLink) -> None:
    with a_round(link, [good, slow]) as clients:
        call(clients, "first")
        began = time.monotonic()
        clients.post("echo", {client: {"value": "slowly"} for client in clients.alive})
        assert time.monotonic() - began < SLOW / 2
        arrived = [
            client for client, _ in clients.answers("echo", {c: {"value": 1} for c in (0, 1)})
        ]
        assert arrived == [0, 1]
        assert time.monotonic() - began > 0.9 * SLOW
    assert clients.failures == {}


@pytest.mark.parametrize(
    ("least", "asked", "needed"), [(1, 4, 2), (1, 5, 3), (3, 4, 3), (9, 4, 4), (1, 1, 1)]
)
def test_half_of_all_must_have_answered_before_anyone_is_late(
    least: int, asked: int, needed: int
) -> None:
    assert Patience(2.0, least).answers_needed(asked) == needed
