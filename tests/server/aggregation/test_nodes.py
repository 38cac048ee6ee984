"""Aggregators that ask for nodes: none waits for nodes that do not come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.links.ticket import arrays_of
from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator, nodes
from flwr_splitmix.server.aggregation.choice import make_aggregator, warn_of_minima
from flwr_splitmix.server.messages import messages_to
from tests.server.aggregation.aggregators import noisy


class FakeGrid:
    """A grid with nodes that never grow in number."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return [*self.nodes, 99]


@pytest.mark.parametrize(
    "make",
    [
        lambda: flower.FedAvg(min_available_nodes=5),
        lambda: flower.FedAvg(min_train_nodes=3, min_available_nodes=2),
        lambda: flower.FedAdam(min_available_nodes=3),
        lambda: flower.DifferentialPrivacyServerSideFixedClipping(
            flower.FedAvg(min_available_nodes=3), 1.0, 1.0, 2
        ),
    ],
)
def test_an_aggregator_that_waits_for_more_nodes_is_an_error_not_a_wait(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = LowerAggregator(make())
    grid = cast(Grid, FakeGrid([1, 2]))
    slept: list[float] = []
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", slept.append)
    with pytest.raises(AggregatorError, match=r"Fed\w+ waits for more nodes than the 2 that take"):
        aggregator.configure(1, ArrayRecord(), ConfigRecord(), grid, [1, 2])
    assert not slept  # as Flower's wait does


@pytest.mark.parametrize(
    ("aggregator", "starts"),
    [
        (flower.FedAdam(), ["min_nodes is 1, but FedAdam requires 2 nodes (min_train_nodes or"]),
        (make_aggregator("FedAdam"), []),
        (flower.FedAvg(min_train_nodes=1, min_available_nodes=1), []),
        (None, []),
    ],
)
def test_minima_beyond_min_nodes_are_told_before_a_round_is_too_small(
    aggregator: Any, starts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_minima(aggregator, 1, "min_nodes")
    assert [
        message[: len(start)] for message, start in zip(caplog.messages, starts, strict=True)
    ] == starts


class Waiting(flower.FedAvg):
    """Waits in its own way, whatever its options say, and asks every now and then."""

    def __init__(self, least: int, questions: int = 0) -> None:
        super().__init__(min_available_nodes=9)
        self.least = least
        self.questions = questions

    def configure_train(self, *arguments: Any) -> list[Message]:
        grid = arguments[-1]
        while self.questions or len(list(grid.get_node_ids())) < self.least:
            self.questions -= 1
            grid.get_node_ids()
            time.sleep(0.01)
        return messages_to([1], RecordDict(), MessageType.TRAIN, in_run=False)


def test_an_aggregator_that_waits_in_its_own_way_is_stopped_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "WAIT_SECONDS", 0.1)
    aggregator = LowerAggregator(Waiting(least=3))
    grid = cast(Grid, FakeGrid([1, 2]))
    with pytest.raises(AggregatorError, match="Waiting waits for more nodes than the 2 that take"):
        aggregator.configure(1, ArrayRecord(), ConfigRecord(), grid, [1, 2])


def test_an_aggregator_may_ask_for_the_nodes_as_often_as_it_likes() -> None:
    aggregator = LowerAggregator(Waiting(least=2, questions=20))
    grid = cast(Grid, FakeGrid([1, 2]))
    assert len(aggregator.configure(1, ArrayRecord(), ConfigRecord(), grid, [1, 2])) == 1


class Sending(flower.FedAvg):
    """Sends records of arrays of its own, before others."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__(**options)
        self.names = names

    def configure_train(self, *arguments: Any) -> list[Message]:
        content = RecordDict()
        for name in self.names:
            content[name] = ArrayRecord([np.full(1, len(name))])
        return messages_to([1], content, MessageType.TRAIN, in_run=False)


@pytest.mark.parametrize(
    "strategy",
    [
        Sending("controls", "arrays"),
        Sending("arrays", "controls"),
        Sending("controls", "weight", arrayrecord_key="weight"),
        noisy(Sending("controls", "weight", arrayrecord_key="weight")),
        Sending("weight"),
    ],
)
def test_the_lower_segment_comes_first_whatever_else_an_aggregator_sends(
    strategy: flower.Strategy,
) -> None:
    """Clients take the first record."""
    grid = cast(Grid, FakeGrid([1]))
    (message,) = LowerAggregator(strategy).configure(1, ArrayRecord(), ConfigRecord(), grid, [1])
    arrays = arrays_of(message.content)
    assert arrays is not None
    assert [int(array) for array in arrays.values()] == [len("arrays")]  # or "weight"


def test_records_of_which_none_is_the_lower_segment_are_refused() -> None:
    grid = cast(Grid, FakeGrid([1]))
    with pytest.raises(AggregatorError, match="Sending sends the ArrayRecords a, b, and none is"):
        LowerAggregator(Sending("a", "b")).configure(1, ArrayRecord(), ConfigRecord(), grid, [1])


def test_an_aggregator_that_asks_nobody_is_an_error() -> None:
    class Silent(flower.FedAvg):
        def configure_train(self, *arguments: Any) -> list[Message]:
            return []

    for grid in (cast(Grid, FakeGrid([1])), None):
        with pytest.raises(AggregatorError, match="Silent asked no node to train in round 4"):
            LowerAggregator(Silent()).configure(4, ArrayRecord(), ConfigRecord(), grid, [1])
