"""Aggregators that make nothing of too few clients: what a round costs, and what ends a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.clients import ClientError, Order, SplitClient
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.observers import Observer
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.server.aggregation.aggregators import ANY_NODES

NEEDED = 7


class Absent(SplitClient):
    """Takes no part in some rounds."""

    rounds: Sequence[int] = ()

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        if order.server_round in self.rounds:
            raise ClientError("the battery is empty")
        return super().attach(order, arrays)


def bulyan(toy: Toy, **options: Any) -> SFL:
    """Return a strategy whose aggregator needs seven clients."""
    aggregator = flower.Bulyan(num_malicious_nodes=1, **ANY_NODES)
    return SFL(toy.upper(), device="cpu", aggregator=aggregator, **options)


def clients_of(toy: Toy, absent: Sequence[int] = ()) -> list[SplitClient]:
    """Return clients, of which the first is absent in some rounds."""
    clients = list(toy.make_clients(sgd(0.1), kind=Absent))
    clients[0].rounds = absent  # type: ignore[attr-defined]
    return clients


class Begins(Observer):
    """Keeps the lower segment that each round begins with."""

    def __init__(self) -> None:
        self.segments: list[dict[str, Tensor]] = []

    def on_begin(self, event: Any) -> None:
        self.segments.append({name: t.clone() for name, t in event.segment().items()})


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_client_costs_the_round_and_not_the_run(
    lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One of seven is lost."""
    toy = Toy(clients=NEEDED)
    observer = Begins()
    result = bulyan(toy, observers=[observer]).fit(clients_of(toy, [lost]), 3)
    segments = [*observer.segments, to_tensors(result.arrays)]
    changes = [
        any(not torch.equal(after[name], t) for name, t in before.items())
        for before, after in pairwise(segments)
    ]
    assert changes == [number != lost for number in (1, 2, 3)]
    warning = f"round {lost}: Bulyan made nothing of the weights of 6 clients; the next"
    assert [warning in message for message in caplog.messages].count(True) == 1


def test_too_few_clients_from_the_beginning_are_an_error() -> None:
    """Every round would begin with the first weights."""
    toy = Toy(clients=NEEDED - 1)
    with pytest.raises(AggregatorError, match="Bulyan made nothing of the weights of 6 clients"):
        bulyan(toy).fit(clients_of(toy), 1)


def test_what_a_run_had_enough_of_says_nothing_of_the_next() -> None:
    toy = Toy(clients=NEEDED)
    clients = clients_of(toy)
    strategy = bulyan(toy)
    strategy.fit(clients, 1)
    with pytest.raises(AggregatorError, match="Bulyan made nothing of the weights of 6 clients"):
        strategy.fit(clients[1:], 1)
