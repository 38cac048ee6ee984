"""What is averaged besides weights: tables of indices, masks, and nothing at all."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array
from torch import nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient
from flwr_splitmix.links.ticket import to_tensors
from flwr_splitmix.server.aggregation import AggregatorError, AggregatorName, make_aggregator
from flwr_splitmix.server.aggregation.measured import without_negative_variances
from flwr_splitmix.strategies import PSL, SFL


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
    """An average of 7, 7 and 7 was 6.9999999, which became the index 6."""
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    segment, upper = Permuting(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 256, 2))
    own = [SplitClient(deepcopy(segment), data, batch_size=4) for _ in range(clients)]
    strategy = SFL(upper, num_classes=2, device="cpu", aggregator=make_aggregator(name))
    result = strategy.fit(own, 2)
    before = segment.state_dict()
    for after in (client.segment.state_dict() for client in own):
        assert torch.equal(after["order"], before["order"])
        assert torch.equal(after["mask"], before["mask"])
        assert not torch.equal(after["linear.weight"], before["linear.weight"])
    assert to_tensors(result.arrays)["order"].dtype == torch.int64


def test_a_lower_segment_without_weights_cannot_be_averaged() -> None:
    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    clients = [SplitClient(nn.Identity(), data, batch_size=4) for _ in range(2)]
    with pytest.raises(AggregatorError, match="no weights that could be averaged; take a strategy"):
        SFL(upper, num_classes=2, device="cpu").fit(clients, 1)
    assert PSL(upper, num_classes=2, device="cpu").fit(clients, 1).train_metrics_clientapp


def test_noise_makes_no_variance_negative() -> None:
    names = ("bn.running_var", "bn.running_mean", "weight")
    made = {
        name: without_negative_variances(name, Array(np.array([-0.5, 2.0], np.float32)))
        .numpy()
        .tolist()
        for name in names
    }
    assert made == dict(zip(names, [[0.0, 2.0], [-0.5, 2.0], [-0.5, 2.0]], strict=True))
