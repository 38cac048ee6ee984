"""Sending messages, and knowing which node holds which client."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flwr_splitmix.links import LinkError, polling
from flwr_splitmix.links.polling import Directory, Mail, Online, refusal, send_and_wait
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import NEVER, FakeGrid, question, toy_app

APP = toy_app(Toy(clients=3))


def test_nodes_are_asked_once_for_their_partition_id() -> None:
    grid = FakeGrid(APP, 3)
    directory = Directory()
    for _ in range(3):
        assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 101, 2: 102}
    assert len(grid.sent) == 3


def test_only_connected_nodes_are_listed() -> None:
    grid = FakeGrid(APP, 3)
    directory = Directory()
    directory.update(grid.grid, 3, 60)
    grid.online.discard(101)
    assert directory.update(grid.grid, 2, 60) == {0: 100, 2: 102}
    with pytest.raises(LinkError, match="2 nodes answered within 0 s, min-nodes is 3"):
        directory.update(grid.grid, 3, 0)


def test_a_node_that_was_started_again_takes_the_place_of_its_old_self(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower lists the old id until its heartbeat is overdue."""
    monkeypatch.setattr(polling, "CLAIM_SECONDS", 2.0)
    gone: set[int] = set()

    def handle(message: Message, context: Context) -> Message:
        if context.node_id in gone:
            NEVER.wait()
        return APP(message, context)

    grid = FakeGrid(handle, 3)
    directory = Directory()
    directory.update(grid.grid, 3, 60)
    gone.add(101)
    grid.contexts[201] = grid.contexts[101].__class__(
        run_id=1, node_id=201, node_config={"partition-id": 1}, state=RecordDict(), run_config={}
    )
    grid.online.add(201)
    assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 201, 2: 102}


def test_two_living_nodes_of_one_index_are_refused() -> None:
    grid = FakeGrid(APP, 3)
    grid.contexts[102].node_config["partition-id"] = 1
    with pytest.raises(LinkError, match="two SuperNodes have the same partition-id"):
        Directory().update(grid.grid, 2, 60)


def test_a_node_without_partition_id_is_named() -> None:
    grid = FakeGrid(APP, 1)
    grid.contexts[100].node_config.clear()
    with pytest.raises(LinkError, match="a SuperNode has no partition-id; give it one"):
        Directory().update(grid.grid, 1, 0)


def test_replies_that_nobody_waits_for_are_thrown_away() -> None:
    grid = FakeGrid(APP, 2)
    first = Mail(grid.grid, [question(100)])
    grid.wait()
    second = Mail(grid.grid, [question(101)], first.unread)
    grid.wait()
    assert set(second.look()) == {101}
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
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    grid = FakeGrid(APP, 2)
    online = Online(grid.grid, every=2.0)
    grid.online.discard(101)
    now += 1.9
    assert not online.has_lost(101)
    now += 0.2
    assert online.has_lost(101)
    assert not online.has_lost(100)


@pytest.mark.parametrize(
    ("record", "said"), [({"error": "no data"}, "no data"), ({"warning": "x"}, None), (None, None)]
)
def test_a_refusal_is_read_from_the_reply(record: Any, said: str | None) -> None:
    content = RecordDict({} if record is None else {RECORD: ConfigRecord(record)})
    assert refusal(Message(content, reply_to=question(100))) == said
