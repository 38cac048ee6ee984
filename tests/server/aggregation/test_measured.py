"""What is averaged besides weights: tables of indices, masks, and nothing at all."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from torch import nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.server.aggregation import (
    AggregatorError,
    AggregatorName,
    LowerAggregator,
    make_aggregator,
)
from flwr_splitmix.server.aggregation.measured import without_negative_variances
from flwr_splitmix.strategies import PSL, SFL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.server.aggregation.aggregators import ANY_NODES, noisy


class Permuting(nn.Module):
    """A lower segment with a table of indices, and a mask of -inf, as attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 256)
        self.order: torch.Tensor
        self.register_buffer("order", torch.arange(256).flip(0))
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        smashed: torch.Tensor = self.linear(inputs)[..., self.order]
        return smashed + self.mask.softmax(-1).sum()


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedAdam", "FedMedian"])
@pytest.mark.parametrize("clients", [3, 6])
def test_tables_and_masks_come_back_as_they_were(name: AggregatorName, clients: int) -> None:
    """An average of 7, 7 and 7 may be 6.9999999, which would become the index 6."""
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    segment, upper = Permuting(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 256, 2))
    participants = [SplitClient(deepcopy(segment), data, batch_size=4) for _ in range(clients)]
    strategy = SFL(upper, num_classes=2, device="cpu", aggregator=make_aggregator(name))
    result = strategy.fit(participants, 2)
    before = segment.state_dict()
    for after in (client.segment.state_dict() for client in participants):
        assert torch.equal(after["order"], before["order"])
        assert torch.equal(after["mask"], before["mask"])
        assert not torch.equal(after["linear.weight"], before["linear.weight"])
    assert to_tensors(result.arrays)["order"].dtype == torch.int64


class PartlyFrozen(nn.Module):
    """A lower segment with frozen weights and a constant beside those that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 8).requires_grad_(False)
        self.linear = nn.Linear(8, 8)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.tensor([0.485, 0.456, -100.0]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        smashed: torch.Tensor = self.linear(self.frozen(inputs - self.mean))
        return smashed


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_a_server_optimizer_moves_no_array_that_no_client_has_changed(
    name: AggregatorName,
) -> None:
    """Steps by the rounding of their average would move a constant in 100 rounds."""
    segment, upper = PartlyFrozen(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 8, 2))
    sizes = (8, 12, 28)  # an average by these is rounded
    participants = [
        SplitClient(
            deepcopy(segment),
            TensorDataset(torch.randn(n, 4, 3), torch.arange(n) % 2),
            batch_size=4,
        )
        for n in sizes
    ]
    strategy = SFL(upper, num_classes=2, device="cpu", aggregator=make_aggregator(name))
    strategy.fit(participants, 5)
    before = segment.state_dict()
    for after in (client.segment.state_dict() for client in participants):
        for constant in ("frozen.weight", "frozen.bias", "mean"):
            assert torch.equal(after[constant], before[constant])
        assert not torch.equal(after["linear.weight"], before["linear.weight"])


HUGE = 2**60 + 1
"""A whole number that is not the same as a float64."""

AGGREGATORS: dict[str, flower.Strategy] = {
    **{name: make_aggregator(name) for name in ("FedAvg", "FedAvgM", "FedAdam", "FedMedian")},
    "Krum": flower.Krum(**ANY_NODES),
}


def aggregate(
    aggregator: LowerAggregator, salts: list[Any], began: Any, server_round: int = 1
) -> Any:
    """Return what becomes of the array "salt" that each client sends, with unequal weights."""

    def content(salt: Any, weight: float) -> ArrayRecord:
        weights = Array(np.full(2, weight, np.float32))
        return ArrayRecord({"weight": weights, "salt": Array(np.asarray(salt))})

    nodes = list(range(len(salts)))
    requests = aggregator.configure(server_round, content(began, 0.0), ConfigRecord(), None, nodes)
    replies = [
        Message(
            RecordDict(
                {
                    "arrays": content(salt, 1.0),
                    "metrics": MetricRecord({"num-examples": 7 + 6 * client}),
                }
            ),
            reply_to=message,
        )
        for client, (message, salt) in enumerate(zip(requests, salts, strict=True))
    ]
    arrays, _ = aggregator.aggregate(server_round, replies)
    assert arrays is not None
    return arrays["salt"].numpy()


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_that_all_clients_sent_alike_come_back_exactly(name: str, dtype: Any) -> None:
    """However large they are, and beside others of the same array that differ."""
    salt = [np.array([HUGE, 2**53 + 1, 2**63 - 1, client], dtype) for client in range(3)]
    after = aggregate(LowerAggregator(deepcopy(AGGREGATORS[name])), salt, np.zeros(4, dtype))
    assert after.dtype == dtype
    assert after[:3].tolist() == salt[0][:3].tolist()


@pytest.mark.parametrize(("large", "times"), [(2**53, 0), (2**53 + 1, 1), (-(2**53) - 1, 1)])
def test_an_average_of_numbers_too_large_for_it_is_told_once(
    large: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = LowerAggregator(make_aggregator("FedAvg"))
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        for server_round in (1, 2):
            salts = [np.array([large]), np.array([0])]
            aggregate(aggregator, salts, np.zeros(1, int), server_round)
    warnings = [r.getMessage() for r in caplog.records if "beyond 2^53" in r.getMessage()]
    assert len(warnings) == times
    assert all("'salt'" in words for words in warnings)


@pytest.mark.parametrize(("began", "comes_back"), [(HUGE, True), (0, False)])
def test_noise_stays_on_whole_numbers_that_clients_have_changed(
    began: int, comes_back: bool
) -> None:
    """Those that a round began with tell nothing of the clients' data."""
    aggregator = LowerAggregator(noisy(flower.FedAvg(**ANY_NODES)))
    after = aggregate(aggregator, [np.array(HUGE)] * 2, np.array(began))
    assert (int(after) == HUGE) == comes_back


def test_a_lower_segment_without_weights_cannot_be_averaged() -> None:
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    clients = [SplitClient(nn.Identity(), data, batch_size=4) for _ in range(2)]
    with pytest.raises(AggregatorError, match="no weights that could be averaged; take a strategy"):
        SFL(upper, num_classes=2, device="cpu").fit(clients, 1)
    assert PSL(upper, num_classes=2, device="cpu").fit(clients, 1).train_metrics_clientapp


def test_noise_makes_no_variance_negative() -> None:
    names = ("bn.running_var", "bn.running_mean", "weight")
    clipped = {
        name: without_negative_variances(name, Array(np.array([-0.5, 2.0], np.float32)))
        .numpy()
        .tolist()
        for name in names
    }
    assert clipped == dict(zip(names, [[0.0, 2.0], [-0.5, 2.0], [-0.5, 2.0]], strict=True))


class OfChosenWeight(SplitClient):
    """Reports, as "q", with what weight it is averaged."""

    q = 1

    def release(self) -> Any:
        weights, metrics = super().release()
        return weights, {**metrics, "q": self.q}


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_statistics_are_weighted_as_the_aggregator_is_told(name: str) -> None:
    """A server optimizer's, too, go by its weighted_by_key."""
    toy = Toy(clients=2)
    clients = toy.make_clients(sgd(0.1), OfChosenWeight)
    aggregator = getattr(flower, name)(weighted_by_key="q", **ANY_NODES)
    clients[1].q = 0  # type: ignore[attr-defined]
    client_weights: list[Any] = []

    class Watching(SFL):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            client_weights.extend(
                to_tensors(dict(r.content.array_records)["arrays"]) for r in replies
            )
            return super().aggregate_train(server_round, replies)

    strategy = Watching(toy.upper(), device="cpu", optimizer=sgd(0.1), aggregator=aggregator)
    after = to_tensors(strategy.fit(clients, 1).arrays)
    for part in ("norm.running_mean", "norm.running_var"):
        assert torch.equal(after[part], client_weights[0][part])
        assert not torch.equal(after[part], client_weights[1][part])


@pytest.mark.parametrize("kind", [flower.FedAvg, flower.FedAdam])
def test_a_weight_that_no_client_reports_is_named(kind: Any) -> None:
    """Flower names only the key, and a round's training is lost."""
    toy = Toy(clients=2)
    aggregator = kind(weighted_by_key="n", **ANY_NODES)
    strategy = SFL(toy.upper(), device="cpu", optimizer=sgd(0.1), aggregator=aggregator)
    with pytest.raises(
        AggregatorError,
        match=f"{kind.__name__} has weighted_by_key='n', .* one of 'num-examples' and 'num-steps'",
    ):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


@pytest.mark.parametrize("q", [0, [1.0]], ids=str)
def test_weights_that_are_none_are_the_aggregators_to_refuse(q: Any) -> None:
    """Such as flwr's exceptions for them, which name the key."""
    toy = Toy(clients=2)
    messages = []
    for optimizer in (False, True):
        clients = toy.make_clients(sgd(0.1), OfChosenWeight)
        for client in clients:
            client.q = q  # type: ignore[attr-defined]
        kind = flower.FedAdam if optimizer else flower.FedAvg
        aggregator = kind(weighted_by_key="q", **ANY_NODES)
        strategy = SFL(toy.upper(), device="cpu", optimizer=sgd(0.1), aggregator=aggregator)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever flwr raises
            strategy.fit(clients, 1)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
