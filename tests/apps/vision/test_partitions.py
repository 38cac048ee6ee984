"""How many partitions there are: the first node that answers says it, and another if it is down."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Error, Message

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision import partitions
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.partitions import MAX_ASKED, answer_partitions, ask_partitions
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


def test_one_answer_is_enough() -> None:
    grid = FakeGrid(unless(set(), silent=False), 5)
    assert ask_partitions(grid.grid, 60) == 5
    assert asked(grid) == [100]


def test_the_next_node_is_asked_at_once_if_one_has_failed() -> None:
    grid, began = FakeGrid(unless({100, 101}, silent=False), 5), time.monotonic()
    assert ask_partitions(grid.grid, 60) == 5
    assert asked(grid) == [100, 101, 102]
    assert time.monotonic() < began + 10


def test_the_next_node_is_asked_after_a_while_if_one_is_silent() -> None:
    grid = FakeGrid(unless({100}, silent=True), 2)
    assert ask_partitions(grid.grid, 2.0) == 2
    assert asked(grid) == [100, 101]


def test_who_answers_after_the_next_was_asked_is_heard() -> None:
    def slowly(message: Message, context: Context) -> Message:
        if context.node_id != 100:
            NEVER.wait()
        time.sleep(1.0)
        return answer_partitions(message, context)

    grid = FakeGrid(slowly, 4)
    assert ask_partitions(grid.grid, 2.4) == 4
    assert asked(grid) == [100, 101]


def test_a_few_are_asked_and_no_more() -> None:
    nodes = set(range(100, 110))
    failed = FakeGrid(unless(nodes, silent=False), 10)
    with pytest.raises(LinkError, match=r"divided: .*node 100 is down; .*101 is down; .*102 is do"):
        ask_partitions(failed.grid, 60)
    assert len(failed.sent) == MAX_ASKED
    silent, began = FakeGrid(unless(nodes, silent=True), 10), time.monotonic()
    with pytest.raises(LinkError, match=r"divided: no answer within 0\.6 s"):
        ask_partitions(silent.grid, 0.6)
    assert time.monotonic() < began + 5
    assert len(silent.sent) == MAX_ASKED


def test_nodes_that_wait_for_ray_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(LinkError, match="no answer"):
        ask_partitions(FakeGrid(unless({100}, silent=True), 1).grid, 0.2)
    assert "because Ray has not started" in caplog.text


@pytest.mark.parametrize(
    "act", [client_fn, lambda node_context: partitions.partitions_of(node_context.node_config)]
)
def test_a_node_without_a_number_of_partitions_is_told_what_it_lacks(act: Any) -> None:
    node_context = context(0, 2, run_config())
    del node_context.node_config["num-partitions"]
    with pytest.raises(ConfigError, match=r"has no num-partitions, .* give it one with --node-con"):
        act(node_context)
