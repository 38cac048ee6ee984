"""A line ends at frames that an honest node does not send, and at such as cost too much."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.stream.call import ClosedLineError
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.protocol import REPLY_HEADER, in_pieces
from flwr_splitmix.server.intake.ushape import MAX_GROUPS, MAX_MESSAGES
from tests.links.stream.wires import Wire, attached, hello, reply, sent


@pytest.fixture
def line() -> Line:
    return Line(lambda: None)


def test_a_round_begins_with_hello(line: Line) -> None:
    wire = Wire()
    line.connect(wire)
    line.hello(wire, reply(0))
    assert line.failure == "began with a reply frame, not with hello"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            b"\0" * 99,
            "sent bytes that are not a frame: these bytes are not a frame of flwr-splitmix",
        ),
        (hello(), "sent a hello frame in the midst of a round"),
        (encode(Frame("finish")), "sent a finish frame in the midst of a round"),
    ],
)
def test_nonsense_ends_the_line(line: Line, data: bytes, reason: str) -> None:
    wire = attached(line)
    call = line.submit("step", {})
    sent(line, wire)
    assert line.receive(wire, data)
    assert call.outcome is not None
    assert call.outcome.error == line.failure == reason
    last = line.next_frame(wire)
    assert last is not None
    assert last[1]
    assert decode(last[0]).kind == "leave"
    wire.standing = False
    with pytest.raises(ClosedLineError, match=reason):
        line.connect(Wire())


def test_a_second_answer_changes_nothing(line: Line) -> None:
    wire = attached(line)
    call = line.submit("step", {})
    sent(line, wire)
    assert line.receive(wire, reply(1, a=1))
    first = call.outcome
    assert not line.receive(wire, reply(1, a=2))
    assert call.outcome is first


@pytest.mark.parametrize("kind", ["reply", "error"])
@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_an_answer_to_another_call_than_the_oldest_ends_the_line(
    line: Line, kind: Literal["reply", "error"], number: int
) -> None:
    """Decoding and passing over it would take the thread of all nodes, as often as a node likes."""
    wire = attached(line)
    line.submit("step", {})
    sent(line, wire)
    line.receive(wire, reply(1))
    calls = [line.submit("step", {}) for _ in (2, 3)]
    for _ in calls:
        sent(line, wire)
    assert line.receive(wire, encode(Frame(kind, number)))
    assert line.failure == f"answered call {number} where call 2 was due"
    assert [call.outcome and call.outcome.error for call in calls] == [line.failure] * 2
    assert not line.awaits_reply(wire)


def test_a_hello_is_short(line: Line) -> None:
    """One of a megabyte takes 0.8 s to decode, for which all nodes would wait."""
    long = encode(Frame("hello", payload={"values": [[]] * 10_000}))
    wire = Wire()
    line.connect(wire)
    line.hello(wire, long)
    assert line.description is None
    assert line.failure is not None
    assert "bytes, at most 16384 are allowed" in line.failure


def test_a_reply_has_a_short_header(line: Line) -> None:
    """One of nested lists takes hundreds of times as long to decode as tensors of its bytes."""
    wire = attached(line)
    line.submit("step", {})
    sent(line, wire)
    assert line.receive(wire, reply(1, values=[[]] * 30_000))
    assert line.failure is not None
    assert "bytes, at most 65536 are allowed" in line.failure


def test_the_most_messages_of_a_batch_have_a_short_header(line: Line) -> None:
    """64 of a batch, and of each of four groups of public texts, in the longest wire format."""
    message = torch.ones(1, 1, 4)
    group = {"messages": [message] * MAX_MESSAGES, "mask": torch.ones(1, 1, dtype=torch.uint8)}
    frame = Frame("reply", 1, payload={**group, "public": [group] * MAX_GROUPS})
    wire = attached(line)
    call = line.submit("encode", {})
    sent(line, wire)
    assert line.receive(wire, in_pieces(frame, "int8", max_header=REPLY_HEADER // 3))
    assert line.failure is None
    assert call.outcome is not None
    assert call.outcome.reply is not None
