"""Lower segments that are averaged: what their numbers may be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.strategies import PSL, SFL, SplitStrategy
from flwr_splitmix.testing.toy import sgd


def fit(kind: type[SplitStrategy], lower: nn.Module, *, income: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 12, generator=generator)
    data: Any = TensorDataset(
        inputs * torch.tensor([income] + [1.0] * 11), (inputs[:, 1] > 0).long()
    )
    upper = nn.Sequential(nn.Flatten(), nn.Linear(32, 2))
    strategy = kind(upper, num_classes=2, device="cpu", optimizer=sgd(0.01), schedule=constant)
    clients = [
        SplitClient(copy.deepcopy(lower), data, batch_size=16, optimizer=sgd(0.01))
        for _ in range(2)
    ]
    strategy.fit(clients, 2)


def test_the_variance_of_a_raw_feature_is_no_mistake() -> None:
    """An income with a standard deviation of 20,000 has a variance of 4e8."""
    lower = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 32), nn.Unflatten(1, (4, 8)))
    fit(SFL, lower, income=20_000.0)


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_a_constant_of_nan_is_no_mistake(kind: type[SplitStrategy]) -> None:
    lower = nn.Sequential(nn.Linear(12, 32), nn.Unflatten(1, (4, 8)))
    lower.register_buffer("fill", torch.full((3,), float("nan")))
    fit(kind, lower)


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.ones(4, 8, dtype=torch.complex64))
        self.embed = nn.Linear(12, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        filtered: Tensor = torch.fft.ifft(
            torch.fft.fft(self.embed(inputs).unflatten(1, (4, 8))) * self.filter
        ).real
        return filtered


def test_complex_weights_are_trained_and_not_averaged() -> None:
    fit(PSL, Fourier())
    with pytest.raises(AggregatorError, match="weights 'filter' are complex64, which cannot"):
        fit(SFL, Fourier())
