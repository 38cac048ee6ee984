"""Knowing which node holds which client."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flwr_splitmix.links import LinkError
from flwr_splitmix.links import directory as directories
from flwr_splitmix.links.directory import Directory
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import NEVER, FakeGrid, Handler, toy_app

APP = toy_app(Toy(clients=3))


def virtual(message: Message, context: Context) -> Message:
    """Answer as a virtual node does."""
    reply = APP(message, context)
    record = {**reply.content.config_records[RECORD], "simulated": True}
    reply.content[RECORD] = ConfigRecord(record)
    return reply


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
    message = (
        "2 nodes answered within 0 s, min-nodes is 3; for nodes that come later raise "
        r"attach-timeout \(in Python strategy\.start's attach_timeout\)$"
    )
    with pytest.raises(LinkError, match=message):
        directory.update(grid.grid, 3, 0)


def test_the_virtual_nodes_of_a_simulation_are_counted() -> None:
    directory = Directory()
    directory.update(FakeGrid(virtual, 3).grid, 2, 60)
    assert directory.virtual == 3
    directory = Directory()
    directory.update(FakeGrid(APP, 3).grid, 2, 60)
    assert directory.virtual == 0


@pytest.mark.parametrize(
    ("started", "nodes", "warned"), [(False, 0, 1), (True, 0, 0), (False, 1, 0)]
)
def test_nodes_that_wait_for_ray_are_told_of_before_flower_can(
    started: bool, nodes: int, warned: int,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Flower's main thread starts Ray, and shows the ServerApp's error only after that."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: started))
    with pytest.raises(LinkError, match=f"{nodes} nodes? answered within 0 s"):
        Directory().update(FakeGrid(APP, nodes).grid, 2, 0)
    assert caplog.text.count("no node answered within 0 s, because Ray has not started") == warned


def test_a_simulation_with_too_few_nodes_does_not_wait_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directories, "_VIRTUAL_WAIT_SECONDS", 0.1)
    with pytest.raises(LinkError, match=r"1 node answered within 0\.1 s, .*'num-supernodes=2'"):
        Directory().update(FakeGrid(virtual, 1).grid, 2, 60)


def refuses(reason: str) -> Handler:
    """Answer as a node does whose ClientApp raises an error."""

    def handle(message: Message, context: Context) -> Message:
        return Message(Error(0, reason), reply_to=message)

    return handle


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("ValueError: No query function registered with name 'default'", "a SplitClientApp[?]"),
        ("AttributeError: Can't get attribute 'stats' on <module 'cli'>", "in an empty folder"),
    ],
)
def test_a_simulation_whose_nodes_all_fail_ends_soon_with_a_remedy(
    reason: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked twice a second for two minutes, each would leave a traceback in the log each time."""
    monkeypatch.setattr(directories, "_VIRTUAL_WAIT_SECONDS", 2.0)
    monkeypatch.setattr(directories, "ray_runs_here", lambda: True)
    grid, began = FakeGrid(refuses(reason), 2), time.monotonic()
    message = rf"0 nodes answered without an error within \S+ s, min-nodes is 2: .*{remedy}$"
    with pytest.raises(LinkError, match=message):
        Directory().update(grid.grid, 2, 60)
    assert time.monotonic() - began < 20
    assert 2 * 3 <= len(grid.sent) <= 2 * 4


def test_a_supernode_that_fails_at_first_is_asked_again() -> None:
    failed: set[int] = set()

    def handle(message: Message, context: Context) -> Message:
        if context.node_id in failed:
            return APP(message, context)
        failed.add(context.node_id)
        return Message(Error(0, "OSError: not yet"), reply_to=message)

    assert Directory().update(FakeGrid(handle, 2).grid, 2, 60) == {0: 100, 1: 101}


def test_a_node_that_was_started_again_takes_the_place_of_its_old_self(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower lists the old id until its heartbeat is overdue."""
    monkeypatch.setattr(directories, "CLAIM_SECONDS", 2.0)
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


def newcomer(grid: FakeGrid, node: int, index: int, **config: Any) -> None:
    """Connect another node that says it has an index."""
    grid.contexts[node] = Context(
        run_id=1, node_id=node, node_config={"partition-id": index, **config}, state=RecordDict(),
        run_config={},
    )  # fmt: skip
    grid.online.add(node)


def test_two_nodes_of_one_index_are_left_out_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, directory = FakeGrid(APP, 3), Directory()
    grid.contexts[102].node_config["partition-id"] = 1
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        for _ in range(3):
            assert directory.update(grid.grid, 1, 60) == {0: 100}
    assert sorted(r.getMessage() for r in caplog.records) == [
        f"node {node} is left out: it reports partition-id 1 as node {other} does; each SuperNode "
        "needs its own in --node-config"
        for node, other in ((101, 102), (102, 101))
    ]
    assert len(grid.sent) == 3  # nobody is asked again and again
    with pytest.raises(
        LinkError,
        match="min-nodes is 3: node 101 is left out: it reports partition-id 1 as node 102",
    ):
        directory.update(grid.grid, 3, 0)
    grid.online.discard(102)
    assert directory.update(grid.grid, 2, 60) == {0: 100, 1: 101}


def test_the_first_node_keeps_its_index_from_one_that_comes_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid, directory = FakeGrid(APP, 3), Directory()
    directory.update(grid.grid, 3, 60)
    newcomer(grid, 201, 1)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        for _ in range(3):
            assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 101, 2: 102}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("node 201 is left out: it reports partition-id 1, which node 101 has")
    assert len(grid.sent) == 3 + 2  # the new one, and once more the one that it competes with


def test_who_was_away_has_its_index_again_when_it_is_back() -> None:
    grid, directory = FakeGrid(APP, 3), Directory()
    directory.update(grid.grid, 3, 60)
    newcomer(grid, 201, 1)
    directory.update(grid.grid, 3, 60)
    grid.online.discard(101)
    assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 201, 2: 102}
    grid.online.add(101)
    assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 101, 2: 102}


def test_a_node_that_was_silent_for_a_while_has_its_index_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newcomer that waits for the first node's weakness has its index only for so long."""
    monkeypatch.setattr(directories, "CLAIM_SECONDS", 2.0)
    silent = {101}
    node_ids: list[int] = []

    def handle(message: Message, context: Context) -> Message:
        node_ids.append(context.node_id)
        if context.node_id in silent and node_ids.count(context.node_id) > 1:
            NEVER.wait()
        return APP(message, context)

    grid, directory = FakeGrid(handle, 3), Directory()
    directory.update(grid.grid, 3, 60)
    newcomer(grid, 201, 1)
    assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 201, 2: 102}
    silent.clear()
    assert directory.update(grid.grid, 3, 60) == {0: 100, 1: 101, 2: 102}


def test_a_silent_node_is_waited_for_once_and_heard_when_it_answers() -> None:
    """No later round waits for it as long as for the first answer."""
    gate = threading.Event()

    def handle(message: Message, context: Context) -> Message:
        if context.node_id == 102:
            gate.wait(60)
        return APP(message, context)

    grid, directory = FakeGrid(handle, 3), Directory()
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert directory.update(grid.grid, 2, 4.0) == {0: 100, 1: 101}
        took.append(time.monotonic() - began)
    assert took[0] >= 4.0
    assert max(took[1:]) < 3.0
    with pytest.raises(LinkError, match="2 nodes answered within 2 s, min-nodes is 3"):
        directory.update(grid.grid, 3, 2.0)
    assert len(grid.sent) == 3 + 3  # once in every update, however long it takes
    gate.set()
    assert directory.update(grid.grid, 2, 60) == {0: 100, 1: 101, 2: 102}


def test_a_node_without_partition_id_is_named() -> None:
    grid = FakeGrid(APP, 1)
    grid.contexts[100].node_config.clear()
    with pytest.raises(LinkError, match="a SuperNode has no partition-id; give it one"):
        Directory().update(grid.grid, 1, 0)


@pytest.mark.parametrize("index", [2**31, 2**62, -1])
@pytest.mark.parametrize("late", [False, True])
def test_a_partition_id_that_no_ticket_can_hold_costs_its_own_node_only(
    index: int, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server would refuse the ticket that it makes, and the run be over for all."""

    def handle(message: Message, context: Context) -> Message:
        client = context.node_config["partition-id"]
        record = ConfigRecord({"client": client, "simulated": False})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    grid, directory = FakeGrid(handle, 2), Directory()
    if late:
        directory.update(grid.grid, 2, 60)
    newcomer(grid, 202, index)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        for _ in range(2):
            assert directory.update(grid.grid, 2, 60) == {0: 100, 1: 101}
    why = f"node 202 is left out: it reports partition-id {index}; it must be from 0 to 2147483647"
    assert caplog.messages == [why]
    with pytest.raises(LinkError, match=f"min-nodes is 3: {why}"):
        directory.update(grid.grid, 3, 0)


@pytest.mark.parametrize("index", [True, 1.0, "1"])
def test_a_partition_id_of_another_type_is_none(index: Any) -> None:
    """True would be index 1 under the name "True", whose ledgers a resumed run could not read."""

    def handle(message: Message, context: Context) -> Message:
        record = ConfigRecord({"client": index, "simulated": False})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    with pytest.raises(LinkError, match="a node did not say its partition-id"):
        Directory().update(FakeGrid(handle, 1).grid, 1, 0)


def test_nodes_that_divide_the_data_otherwise_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A third node that is started with 3 parts shares examples with two of 2."""
    grid = FakeGrid(APP, 2)
    directory = Directory()
    directory.update(grid.grid, 2, 60)
    assert not caplog.messages
    newcomer(grid, 202, 2, **{"num-partitions": 3})
    newcomer(grid, 203, 3)  # with a data set of its own
    for _ in range(2):
        assert directory.update(grid.grid, 4, 60) == {0: 100, 1: 101, 2: 202, 3: 203}
    (warning,) = caplog.messages
    assert warning.startswith(
        "SuperNodes have different num-partitions: 2 (2 nodes, such as that of client 0), "
        "3 (1 node, such as that of client 2). "
    )
