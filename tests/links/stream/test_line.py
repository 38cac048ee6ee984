"""A line: calls in order, each run once, whatever happens to its connections."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from flwr_splitmix.description import Description
from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.stream.call import ClosedLineError, LiveLineError
from flwr_splitmix.links.stream.line import Line
from tests.links.stream.wires import Wire, attached, reply, sent


@pytest.fixture
def line() -> Line:
    return Line(lambda: None)


def test_calls_are_numbered_and_answered(line: Line) -> None:
    wire = attached(line)
    assert line.description == Description(num_examples=3)
    for number in (1, 2):
        call = line.submit("step", {"k": number})
        frame = sent(line, wire)
        assert (frame.kind, frame.number, frame.text, frame.payload) == (
            "call", number, "step", {"answered": number - 1, "arguments": {"k": number}},
        )  # fmt: skip
        assert call.outcome is None
        assert line.receive(wire, reply(number, a=torch.ones(number)))
        assert call.outcome is not None
        assert call.outcome.reply is not None
        assert call.outcome.reply["a"].numel() == number
        assert call.outcome.nbytes == 4 * number


def test_calls_in_flight_are_answered_in_their_order(line: Line) -> None:
    wire = attached(line)
    calls = [line.submit("step", {"k": number}) for number in (1, 2, 3)]
    assert [sent(line, wire).number for _ in calls] == [1, 2, 3]
    for number, call in enumerate(calls, 1):
        assert call.outcome is None
        assert line.receive(wire, reply(number, a=number))
        assert call.outcome is not None
        assert call.outcome.reply == {"a": number}


def test_seconds_count_from_when_the_client_was_free(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    wire = attached(line)
    first, second = line.submit("step", {}), line.submit("step", {})
    for number, seconds in ((1, 5.0), (2, 3.0)):
        clock += seconds
        sent(line, wire)
        line.receive(wire, reply(number))
    assert first.outcome is not None
    assert second.outcome is not None
    assert (first.outcome.seconds, second.outcome.seconds) == (5.0, 3.0)


def test_all_calls_in_flight_are_sent_again_on_the_next_connection(line: Line) -> None:
    wire = attached(line)
    calls = [line.submit("step", {"k": number}) for number in (1, 2, 3)]
    for _ in calls:
        sent(line, wire)
    assert line.receive(wire, reply(1))
    line.disconnect(wire)
    wire = attached(line, 3)  # all calls ran, two replies were lost
    assert [sent(line, wire).number for _ in range(2)] == [2, 3]
    assert [line.receive(wire, reply(number)) for number in (2, 3)] == [True, True]
    assert all(call.outcome is not None for call in calls)
    later = line.submit("step", {})
    assert sent(line, wire).payload["answered"] == 3
    assert later.outcome is None


@pytest.mark.parametrize("answered", [0, 4])
def test_a_client_that_answered_fewer_or_more_is_out_of_step(line: Line, answered: int) -> None:
    wire = attached(line)
    calls = [line.submit("step", {}) for _ in range(3)]
    for _ in calls:
        sent(line, wire)
    line.receive(wire, reply(1))
    line.disconnect(wire)
    attached(line, answered)
    assert line.failure == "has lost the steps of this round that came before"
    assert [call.outcome and call.outcome.error for call in calls] == [None, *[line.failure] * 2]


def test_replies_are_awaited_while_a_call_that_was_sent_is_in_flight(line: Line) -> None:
    wire = attached(line)
    line.submit("step", {})
    line.submit("step", {})
    assert not line.awaits_reply(wire)
    woken = wire.woken
    sent(line, wire)
    assert wire.woken > woken
    assert line.awaits_reply(wire)
    assert line.receive(wire, reply(1))
    assert not line.awaits_reply(wire)
    sent(line, wire)
    assert line.awaits_reply(wire)
    assert not line.awaits_reply(Wire())
    line.disconnect(wire)
    assert not line.awaits_reply(wire)


def test_an_error_is_one_printable_line(line: Line) -> None:
    wire = attached(line)
    call = line.submit("step", {})
    sent(line, wire)
    assert line.receive(wire, encode(Frame("error", 1, "no\npower\x1b[2J" + "x" * 999)))
    assert call.outcome is not None
    assert call.outcome.reply is None
    assert call.outcome.error is not None
    assert call.outcome.error.startswith(r"no\npower\x1b[2Jxxx")
    assert len(call.outcome.error) == 500


def test_the_call_in_flight_is_sent_again_on_the_next_connection(line: Line) -> None:
    wire = attached(line)
    line.submit("step", {"gradient": torch.arange(3.0)})
    first = line.next_frame(wire)
    line.disconnect(wire)
    assert line.lost_since is not None
    for answered in (0, 1):  # the reply was never made, or lost on its way
        wire = attached(line, answered)
        assert line.lost_since is None
        assert line.next_frame(wire) == first
        line.disconnect(wire)
    wire = attached(line, 1)
    sent(line, wire)
    assert line.receive(wire, reply(1, a=1))


def test_what_an_old_connection_still_says_is_ignored(line: Line) -> None:
    old = attached(line)
    call = line.submit("step", {})
    sent(line, old)
    old.standing = False
    new = attached(line)
    assert not line.receive(old, reply(1, a="old"))
    assert line.next_frame(old) is None
    line.disconnect(old)
    assert line.lost_since is None
    sent(line, new)
    assert line.receive(new, reply(1, a="new"))
    assert call.outcome is not None
    assert call.outcome.reply == {"a": "new"}


def test_a_second_connection_is_refused_while_the_first_stands(line: Line) -> None:
    first = attached(line)
    with pytest.raises(LiveLineError):
        line.connect(Wire())
    first.standing = False
    line.connect(Wire())


def test_a_client_that_lost_the_round_cannot_go_on(line: Line) -> None:
    wire = attached(line)
    line.submit("step", {})
    sent(line, wire)
    line.receive(wire, reply(1))
    line.disconnect(wire)
    attached(line, 0)
    assert line.failure == "has lost the steps of this round that came before"
    call = line.submit("step", {})
    assert call.outcome is not None
    assert call.outcome.error == line.failure


def test_finish_is_told_also_to_a_client_that_was_cut_off(line: Line) -> None:
    wire = attached(line)
    line.end("finish")
    line.disconnect(wire)
    frame, last = line.next_frame(attached(line)) or ([], False)
    assert (decode(frame).kind, last) == ("finish", True)


def test_a_client_left_out_is_told_why_and_stays_out(line: Line) -> None:
    wire = attached(line)
    line.end("leave", "uploaded NaN")
    line.end("finish")
    frame = sent(line, wire)
    assert (frame.kind, frame.text) == ("leave", "uploaded NaN")
    line.disconnect(wire)
    with pytest.raises(ClosedLineError, match="uploaded NaN"):
        line.connect(Wire())


def test_who_owes_an_answer_is_cut_off(line: Line) -> None:
    wire = attached(line)
    line.submit("step", {})
    sent(line, wire)
    line.end("leave", "late")
    assert not wire.standing


def test_a_connection_that_has_ended_has_nothing_to_send(line: Line) -> None:
    wire = attached(line)
    assert line.next_frame(wire) == ([], False)
    wire.cancel()
    assert line.next_frame(wire) is None
    line.disconnect(wire)
    assert line.next_frame(wire) is None


@pytest.mark.parametrize(
    "happens",
    [
        lambda line: line.submit("step", {}),
        lambda line: line.end("finish"),
        lambda line: line.end("leave", "no"),
    ],
    ids=["call", "finish", "leave"],
)
def test_what_is_to_be_sent_wakes_the_connection(line: Line, happens: Any) -> None:
    wire = attached(line)
    assert line.next_frame(wire) == ([], False)
    before = wire.woken
    happens(line)
    assert wire.woken > before
    assert (line.next_frame(wire) or ([], False))[0]


def test_a_call_that_cannot_travel_is_an_outcome() -> None:
    changed = threading.Event()
    line = Line(changed.set)
    wire = attached(line)
    changed.clear()
    call = line.submit("step", {"value": object()})
    assert line.next_frame(wire) == ([], False)
    assert changed.is_set()
    assert call.outcome is not None
    assert "could not be sent its call: object cannot travel" in str(call.outcome.error)
    line.end("finish")
    assert sent(line, wire).kind == "finish"


def test_a_client_that_connects_again_and_again_waits_longer(line: Line) -> None:
    """Each hello is decoded in the thread that serves all nodes."""
    pauses = []
    for _ in range(200):
        wire = attached(line)
        pauses.append(line.pause)
        wire.cancel()
        line.disconnect(wire)
    assert pauses[:3] == [0.0, 0.01, 0.02]
    assert max(pauses) == pauses[-1] == 1.0
