"""How many partitions there are: what most nodes say, and no node alone."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision import partitions
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.partitions import (
    MAX_ASKED,
    PARTITIONS,
    answer_partitions,
    ask_partitions,
)
from flwr_splitmix.links import LinkError
from tests.apps.vision_app import context, run_config
from tests.links.fake_grid import NEVER, FakeGrid, Handler, question


@pytest.fixture(autouse=True)
def _questions_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give messages explicit metadata, without which they can only be made inside a run."""
    monkeypatch.setattr(partitions, "_question", question)


def unless(failing: set[int], *, silent: bool) -> Handler:
    """Return a ClientApp that answers, but not on the failing nodes."""

    def handle(message: Message, context: Context) -> Message:
        if context.node_id not in failing:
            return answer_partitions(message, context)
        if silent:
            NEVER.wait()
        return Message(Error(1, f"node {context.node_id} is down"), reply_to=message)

    return handle


def asked(grid: FakeGrid) -> list[int]:
    return [message.metadata.dst_node_id for message in grid.sent]


def saying(numbers: dict[int, Any]) -> Handler:
    """Return a ClientApp that says another number, or another record, on some nodes."""

    def handle(message: Message, context: Context) -> Message:
        if context.node_id not in numbers:
            return answer_partitions(message, context)
        entries = numbers[context.node_id]
        return Message(RecordDict(entries), reply_to=message)

    return handle


def number(value: Any) -> dict[str, ConfigRecord]:
    return {PARTITIONS: ConfigRecord({"number": value})}


def test_most_answers_are_enough() -> None:
    """The others are not waited for."""
    grid, began = FakeGrid(unless({100, 103}, silent=True), 9), time.monotonic()
    assert ask_partitions(grid.grid, 2, 60) == 9
    assert asked(grid) == [100, 101, 102, 103, 104]
    assert time.monotonic() < began + 10


@pytest.mark.parametrize(
    "entries",
    [
        number(6),
        number(5000),
        number(-3),
        number(0),
        number(True),
        number(5.0),
        number("many"),
        number([5]),
        number(10**12),
        {PARTITIONS: ConfigRecord({})},
        {},
    ],
    ids=str,
)
def test_one_node_decides_nothing(
    entries: dict[str, ConfigRecord], caplog: pytest.LogCaptureFixture
) -> None:
    """All clients would otherwise get the labels of other images, or the run would end."""
    grid = FakeGrid(saying({100: entries}), 5)
    assert ask_partitions(grid.grid, 2, 60) == 5
    fewer = FakeGrid(saying({102: entries, 100: entries}), 5)
    assert ask_partitions(fewer.grid, 2, 60) == 5


def test_nodes_that_differ_are_named(caplog: pytest.LogCaptureFixture) -> None:
    slow = unless({102}, silent=True)

    def handle(message: Message, context: Context) -> Message:
        others = saying({100: number(6), 103: number(4)})
        return (slow if context.node_id == 102 else others)(message, context)

    assert ask_partitions(FakeGrid(handle, 5).grid, 2, 1.0) == 5
    assert (
        "differ in num-partitions, by which the images are divided: 4 (node 103), 5 (node 101 "
        in (caplog.text)
    )
    two = FakeGrid(saying({100: number(6)}), 2)
    with pytest.raises(LinkError, match=r"2 \(node 101\), 6 \(node 100\); start all with the same"):
        ask_partitions(two.grid, 2, 1.0)


def test_as_many_nodes_as_a_run_needs_are_waited_for() -> None:
    """Otherwise the first to connect would decide."""
    message = r"1 node was there within 0\.3 s, min-nodes is 2"
    with pytest.raises(LinkError, match=message):
        ask_partitions(FakeGrid(unless(set(), silent=False), 1).grid, 2, 0.3)


def test_nodes_that_fail_say_why() -> None:
    nodes = set(range(100, 110))
    failed = FakeGrid(unless(nodes, silent=False), 10)
    with pytest.raises(LinkError, match=r"divided: .*node 100 is down; .*101 is down; .*102 is do"):
        ask_partitions(failed.grid, 2, 60)
    assert len(failed.sent) == MAX_ASKED
    silent, began = FakeGrid(unless(nodes, silent=True), 10), time.monotonic()
    with pytest.raises(LinkError, match=r"divided: no answer within 0\.6 s"):
        ask_partitions(silent.grid, 2, 0.6)
    assert time.monotonic() < began + 5
    assert len(silent.sent) == MAX_ASKED


def test_nodes_that_wait_for_ray_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(LinkError, match="no answer"):
        ask_partitions(FakeGrid(unless({100}, silent=True), 1).grid, 1, 0.2)
    assert "because Ray has not started" in caplog.text


@pytest.mark.parametrize(
    "act", [client_fn, lambda node_context: partitions.partitions_of(node_context.node_config)]
)
def test_a_node_without_a_number_of_partitions_is_told_what_it_lacks(act: Any) -> None:
    node_context = context(0, 2, run_config())
    del node_context.node_config["num-partitions"]
    with pytest.raises(ConfigError, match=r"has no num-partitions, .* give it one with --node-con"):
        act(node_context)
    for wrong in ("many", 0, 2.5):
        node_context.node_config["num-partitions"] = wrong
        with pytest.raises(
            ConfigError, match=r"num-partitions is .* an integer of at least 1; give"
        ):
            act(node_context)
