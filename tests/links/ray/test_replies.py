"""What a simulation's ClientApps report at either end of a round is read from their replies."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from flwr_splitmix.description import Description
from flwr_splitmix.links import RayLink
from flwr_splitmix.links.ray import link as ray_link
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.server.messages import messages_to, with_tickets
from tests.links.fake_grid import FakeGrid


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RayLink:
    """Return a link whose only host is never called."""

    def request(content: RecordDict, *, dst_node_id: int, message_type: str) -> Message:
        (message,) = messages_to([dst_node_id], content, message_type, in_run=False)
        return message

    monkeypatch.setattr(ray_link, "Message", request)
    link = RayLink(attach_timeout=60)
    monkeypatch.setattr(link.hosts, "replace_lost", lambda: None)
    monkeypatch.setattr(link.hosts, "of", lambda client: SimpleNamespace(name="host", handle=None))
    return link


def messages_of_round(clients: int, message_type: str) -> list[Message]:
    """Return a message with a ticket for each client."""
    nodes = {index: 100 + index for index in range(clients)}
    ticket_of = partial(Ticket, seed=0, server_round=1, num_rounds=9)
    messages = messages_to(list(nodes.values()), RecordDict(), message_type, in_run=False)
    return with_tickets(messages, nodes, ticket_of, lambda client: {})


def with_metrics_of_mods(message: Message, context: Context) -> Message:
    """Answer as a ClientApp whose mods add metrics to every reply."""
    message_type = message.metadata.message_type
    content = RecordDict({RECORD: ConfigRecord({"num-examples": 7})})
    if message_type == "train.finish":
        content = RecordDict({"metrics": MetricRecord({"num-steps": 2, "seconds": 3.0})})
    content["of-mods"] = MetricRecord({"battery": 0.5, message_type: 1.0})
    if message_type == "train":
        content["metrics"] = MetricRecord({"num-steps": 9, "memory": 8.0})
    return Message(content, reply_to=message)


def test_metrics_that_a_mod_adds_to_the_first_reply_are_in_the_last(link: RayLink) -> None:
    """On a SuperNode they are, as the round has only one."""
    grid = FakeGrid(with_metrics_of_mods, 2)
    with link.round(grid.grid, messages_of_round(2, "train")) as clients:
        pass
    for client in (0, 1):
        assert dict(clients.replies[client].content.metric_records) == {
            "metrics": MetricRecord({"num-steps": 2, "memory": 8.0, "seconds": 3.0}),
            "of-mods": MetricRecord({"battery": 0.5, "train": 1.0, "train.finish": 1.0}),
        }


def test_metrics_that_a_mod_adds_to_an_evaluation_are_named_once(
    link: RayLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "_keep", lambda *_: None)  # there are no hosts
    grid = FakeGrid(with_metrics_of_mods, 2)
    for _ in range(2):
        with link.round(grid.grid, messages_of_round(2, "evaluate")):
            pass
    assert caplog.messages == [
        "left out of the run's metrics: 'battery' and 'evaluate', which a mod adds to replies of "
        "an evaluation; add them to replies of training"
    ]


def test_errors_leave_their_clients_out_and_warnings_are_logged(
    link: RayLink, caplog: pytest.LogCaptureFixture
) -> None:
    at_first: dict[int, Any] = {1: Error(0, "Traceback\nno memory"), 2: {"error": "no data"}}
    at_last: dict[int, Any] = {3: Error(0, "gone"), 4: {"error": "lost"}, 5: {"warning": "full"}}

    def handle(message: Message, context: Context) -> Message:
        index = int(context.node_config["partition-id"])
        begins = message.metadata.message_type == "train"
        answer = (at_first if begins else at_last).get(index, {"num-examples": 7} if begins else {})
        if isinstance(answer, Error):
            return Message(answer, reply_to=message)
        if index == 6:  # a mod has answered by itself
            return Message(RecordDict(), reply_to=message)
        content = RecordDict({RECORD: ConfigRecord(answer)})
        if not begins:
            content["metrics"] = MetricRecord({"num-steps": index})
        return Message(content, reply_to=message)

    grid = FakeGrid(handle, 7)
    with link.round(grid.grid, messages_of_round(7, "train")) as clients:
        assert clients.descriptions == {c: Description(num_examples=7) for c in (0, 3, 4, 5)}
    assert clients.failures == {
        1: "no memory",
        2: "no data",
        3: "gone",
        4: "lost",
        6: "answered its message without attaching",
    }
    assert "full" in caplog.text
    assert {client: dict(reply.content) for client, reply in clients.replies.items()} == {
        index: {"metrics": MetricRecord({"num-steps": index})} for index in (0, 5)
    }
