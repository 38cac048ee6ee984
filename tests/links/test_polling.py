"""Sending messages and reading replies."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flwr_splitmix.links.polling import (
    Mail,
    Online,
    error_sentence,
    refusal,
    send_and_wait,
)
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import NEVER, FakeGrid, question, toy_app

APP = toy_app(Toy(clients=3))


def test_the_engines_words_around_an_error_are_left_out() -> None:
    wrapped = (
        "<class 'flwr.ClientAppException'>:<'\nException ClientAppException occurred. Message: "
        "the first line\nlist index out of range'>"
    )
    reply = Message(Error(3, wrapped), reply_to=question(100))
    assert error_sentence(reply).startswith("the ClientApp failed: the first line")
    assert error_sentence(reply).endswith("list index out of range")


ENGINE = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run() (pid=1)"
    '\n  File "client_app.py", line 74, in mod\n    fail()\n{last}\n\nThe above exception was the '
    "direct cause of the following exception:\n\nray::ClientAppActor.run() (pid=1)\n    raise "
    "ClientAppException(str(ex)) from ex\nflwr.clientapp.client_app.ClientAppException: \n"
    "Exception ClientAppException occurred. Message: {text}'>"
)
"""What a simulation's engine says of an exception."""


@pytest.mark.parametrize(
    ("text", "last", "sentence"),
    [
        ("'metrics'", "KeyError: 'metrics'", "KeyError: 'metrics'"),
        ("no (a+b", "app.errors.DataError: no (a+b", "DataError: no (a+b"),
        ("one\ntwo", "ValueError: one\ntwo", r"ValueError: one\ntwo"),
        ("", "AssertionError", "AssertionError"),
    ],
)
def test_the_type_of_a_nodes_error_is_told(text: str, last: str, sentence: str) -> None:
    """A KeyError's text alone is a word that could mean anything."""
    kind = last.partition(":")[0]
    for reason in (ENGINE.format(text=text, last=last), f"<class '{kind}'>:<'{text}'>"):
        reply = Message(Error(3, reason), reply_to=question(100))
        assert error_sentence(reply) == f"the ClientApp failed: {sentence}"


def test_replies_that_nobody_waits_for_are_thrown_away() -> None:
    grid = FakeGrid(APP, 2)
    first = Mail(grid.grid, [question(100)])
    grid.wait()
    second = Mail(grid.grid, [question(101)], first.unread)
    grid.wait()
    assert set(second.poll()) == {101}
    assert second.complete
    assert second.unread == set()
    assert grid.pull_messages([str(message) for message in first.unread]) == []


def test_nodes_that_do_not_answer_are_missing() -> None:
    def handle(message: Message, context: Context) -> Message:
        if context.node_id == 101:
            NEVER.wait()
        return APP(message, context)

    grid = FakeGrid(handle, 2)
    assert set(send_and_wait(grid.grid, [question(100), question(101)], 3)) == {100}


def test_who_is_connected_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    grid = FakeGrid(APP, 2)
    online = Online(grid.grid, every=2.0)
    grid.online.discard(101)
    clock += 1.9
    assert not online.has_lost(101)
    clock += 0.2
    assert online.has_lost(101)
    assert not online.has_lost(100)


@pytest.mark.parametrize(
    ("record", "reason"),
    [({"error": "no data"}, "no data"), ({"warning": "x"}, None), (None, None)],
)
def test_a_refusal_is_read_from_the_reply(record: Any, reason: str | None) -> None:
    content = RecordDict({} if record is None else {RECORD: ConfigRecord(record)})
    assert refusal(Message(content, reply_to=question(100))) == reason
