"""Peers that may attach, and the treatment of faulty ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.frames.codec import PREFIX, Frame, encode
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.stream import server
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.protocol import PROTOCOL
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.stream.token import FOREIGN, TokenMint
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import (
    DESCRIPTION,
    Raw,
    a_round,
    call,
    echo,
    good,
    no_threads_left,
)
from tests.waiting import wait_for


@pytest.fixture
def link() -> Iterator[StreamLink]:
    """Return a link with timeouts long enough for a busy machine."""
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=60, step_timeout=60, reattach_timeout=60,
        max_body=10**7,
    )  # fmt: skip
    link.open(None)
    yield link
    link.close()
    no_threads_left()


def test_good_peers_are_called_at_once(link: StreamLink) -> None:
    all_called = threading.Barrier(4)

    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        all_called.wait(60)
        return echo(method, arguments)

    def slow(ticket: Ticket, node: int) -> None:
        Session(ticket, node, DESCRIPTION, answer).run()

    with a_round(link, [slow] * 4) as clients:
        assert call(clients, 7) == dict.fromkeys(range(4), 7)
    assert len(clients.replies) == 4
    assert clients.failures == {}


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (lambda own, other: "", FOREIGN),
        (lambda own, other: own[:-1] + "x", FOREIGN),
        (lambda own, other: forged(), FOREIGN),
        (lambda own, other: other, "the token was made for another node"),
    ],
    ids=["none", "changed", "another run's", "another node's"],
)
def test_who_has_no_token_of_its_own_is_refused(
    link: StreamLink, token: Callable[[str, str], str], sentence: str
) -> None:
    tickets: dict[int, Ticket] = {}
    both = threading.Event()

    def honest(ticket: Ticket, node: int) -> None:
        tickets[ticket.client] = ticket
        both.set()
        good(ticket, node)

    def thief(ticket: Ticket, node: int) -> None:
        assert both.wait(60)
        good(replace(ticket, token=token(ticket.token, tickets[0].token)), node)

    with a_round(link, [honest, thief]) as clients:
        assert clients.alive == (0,)
        assert clients.failures == {1: sentence}
        assert call(clients, 1) == {0: 1}


def forged() -> str:
    mint = TokenMint(60)
    return mint.token(mint.admission(101, 1, 1, "train"))


def test_an_expired_token_is_refused() -> None:
    link = StreamLink(address="127.0.0.1:0", token_seconds=0.0, attach_timeout=60)
    link.open(None)
    with a_round(link, [good]) as clients:
        reason = (
            "was valid for 0 s (a StreamLink's token_seconds), and the next round brings another"
        )
        assert clients.failures == {0: f"the token has expired: it {reason}"}
    link.close()


def test_a_token_is_good_for_one_round(link: StreamLink) -> None:
    tickets: list[Ticket] = []

    def keep(ticket: Ticket, node: int) -> None:
        tickets.append(ticket)
        good(ticket, node)

    with a_round(link, [keep]):
        pass
    with pytest.raises(LinkError, match=r"round 1 \(train\) is over"):
        good(tickets[0], 100)
    with (
        a_round(link, [keep], server_round=2),
        pytest.raises(LinkError, match=r"round 1 \(train\) is over"),
    ):
        good(tickets[0], 100)


def test_another_protocol_is_refused_with_both_versions(link: StreamLink) -> None:
    refusals: list[grpc.RpcError] = []

    def old(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node, splitmix_protocol="99")
        refusals.append(raw.refusal())
        raw.close()
        raise LinkError("refused")

    with a_round(link, [old]) as clients:
        assert clients.alive == ()
    assert refusals[0].code() == grpc.StatusCode.FAILED_PRECONDITION
    assert refusals[0].details() == (
        f"the ServerApp speaks version {PROTOCOL} of the stream link, this node 99; "
        "install the same flwr-splitmix on both"
    )


def test_another_service_is_not_there(link: StreamLink) -> None:
    channel = grpc.insecure_channel(link.dialled)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/flwr_splitmix.Link/Shutdown")(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    channel.close()


def test_a_live_connection_is_not_taken_over(link: StreamLink) -> None:
    outcomes: list[Any] = []

    def twice(ticket: Ticket, node: int) -> None:
        first = Raw(ticket, node)
        first.hello()
        second = Raw(ticket, node)
        outcomes.append(second.refusal())
        second.close()
        frame = first.hear()
        first.say(encode(Frame("reply", frame.number, payload={"echo": "first"})))
        outcomes.append(first.hear().kind)
        first.close()

    with a_round(link, [twice]) as clients:
        assert call(clients, 1) == {0: "first"}
    assert outcomes[0].code() == grpc.StatusCode.ALREADY_EXISTS
    assert outcomes[1] == "finish"


def test_a_client_that_connects_again_and_again_is_named(
    link: StreamLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "MANY_CONNECTIONS", 3)

    def restless(ticket: Ticket, node: int) -> None:
        attached = 0
        while attached < 3:
            raw = Raw(ticket, node)
            # Refused while the server has not noticed that the last connection is gone.
            with contextlib.suppress(grpc.RpcError):
                raw.hello()
                attached += 1
            raw.close()
        good(ticket, node)

    with a_round(link, [good, restless], 7) as clients:
        assert call(clients, 1) == {0: 1, 1: 1}
    (warning,) = [r.getMessage() for r in caplog.records if "has connected" in r.getMessage()]
    assert warning.startswith("client 1 has connected 3 times in round 7: ")


@pytest.mark.parametrize(("values", "beside"), [(3, False), (9000, True)])
def test_a_long_header_is_decoded_beside_the_thread_of_all_nodes(
    link: StreamLink, values: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested values take far longer to decode than tensors of as many bytes."""
    threads: list[str] = []
    whole = Line.receive

    def noted(line: Line, connection: Any, data: Any) -> bool:
        threads.append(threading.current_thread().name)
        return whole(line, connection, data)

    monkeypatch.setattr(Line, "receive", noted)
    with a_round(link, [good]) as clients:
        assert call(clients, [[]] * values) == {0: [[]] * values}
    (thread,) = threads
    assert ("coder" in thread) is beside


ANNOUNCED = PREFIX.pack(b"SMXF", 1, 0, 64, 2 << 30) + b" " * 64


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            ANNOUNCED,
            "sent bytes that are not a frame: a frame's body has 2147483648 bytes, at most",
        ),
        (b"", "sent bytes that are not a frame: a frame has at least 24 bytes"),
        (encode(Frame("hello")), "sent a hello frame in the midst of a round"),
        (encode(Frame("reply", 7)), "answered call 7 where call 1 was due"),
    ],
)
def test_nonsense_costs_its_sender_the_round(link: StreamLink, data: bytes, sentence: str) -> None:
    texts: list[str] = []

    def rude(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.hello()
        raw.hear()
        raw.say(data)
        texts.append(raw.hear().text)
        raw.close()

    with a_round(link, [good, rude]) as clients:
        assert call(clients, 1) == {0: 1}
        assert clients.failures[1].startswith(sentence)
        assert call(clients, 2) == {0: 2}
    assert texts[0].startswith(sentence)


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ({"patches": 4}, "does not say its batch-size, as it must"),
        ({"state-round": "0"}, "says that its state-round is '0'; it must be an integer of at"),
        # With noise, ledgers would fail on it.
        ({"state-round": -1}, "says that its state-round is -1; it must be an integer of at least"),
        ({"state-round": False}, "says that its state-round is False; it must be an integer of"),
        ({"a": torch.ones(2)}, "described itself in other than plain values"),
        ({"b": {}}, "described itself in other than plain values"),
        ({"drawn": 2**63}, "says that its drawn is more than 2147483647"),
        # It would end runs that are recorded.
        ({"drawn": 10**4300 - 1}, "says that its drawn is more than 2147483647"),
        ({"state-round": 10**4300 - 1}, "says that its state-round is more than 2147483647"),
    ],
    ids=range(9),
)
def test_who_describes_itself_oddly_is_refused(
    link: StreamLink, description: dict[str, Any], sentence: str
) -> None:
    texts: list[str] = []

    def odd(ticket: Ticket, node: int) -> None:
        raw = Raw(ticket, node)
        raw.say(encode(Frame("hello", payload={**DESCRIPTION, **description})))
        assert raw.hear().kind == "hello"
        texts.append(raw.hear().text)
        raw.close()

    with a_round(link, [good, odd]) as clients:
        assert clients.failures.keys() == {1}
        assert clients.failures[1].startswith(sentence)
    assert texts == [clients.failures[1]]


def test_nothing_is_left_when_a_link_is_closed() -> None:
    before = set(threading.enumerate())
    link = StreamLink(address="127.0.0.1:0")
    link.open(None)
    address = link.dialled
    with a_round(link, [good] * 3) as clients:
        call(clients, 1)
    link.close()
    wait_for("the end of all threads", lambda: set(threading.enumerate()) <= before)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address.split(":")[0], int(address.split(":")[1])), 1)
