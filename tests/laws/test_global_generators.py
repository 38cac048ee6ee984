"""A seed repeats a run whose layers draw from any of the global generators, as LayerDrop does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient, UShapeClient
from flwr_splitmix.strategies import PSL, USplitSL

DRAWS: Mapping[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "Python": random.random,
    "NumPy": np.random.rand,
}


class Dropped(nn.Module):
    """A layer that is left out in half of its calls in training."""

    def __init__(self, draw: Callable[[], float], inputs: int = 4, outputs: int = 4) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(inputs, outputs), draw

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(hidden)
        return output * (self.draw() < 0.5) if self.training else output


class Pooled(nn.Module):
    """A tail that predicts one of three classes from the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        output: Tensor = self.layer(hidden.mean(1))
        return output


def data() -> Any:
    return TensorDataset(torch.randn(32, 5, 4), torch.randint(3, (32,)))


def split(draw: Callable[[], float]) -> list[float]:
    clients = [SplitClient(Dropped(draw), data(), batch_size=8, device="cpu") for _ in range(2)]
    upper = nn.Sequential(Dropped(draw), nn.Flatten(), nn.Linear(20, 3))
    strategy = PSL(upper, num_classes=3, device="cpu")
    strategy.fit(clients, 2)
    return [row["loss"] for row in strategy.rows]


def ushape(draw: Callable[[], float]) -> list[float]:
    texts = data()
    clients = [
        UShapeClient(Dropped(draw), Pooled(), texts, batch_size=8, device="cpu") for _ in range(2)
    ]
    strategy = USplitSL(Dropped(draw), device="cpu")
    strategy.fit(clients, 2)
    return [row["loss"] for row in strategy.rows]


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("fit", [split, ushape])
def test_a_seed_repeats_a_run(fit: Callable[[Callable[[], float]], list[float]], kind: str) -> None:
    """Even where they draw from the generators of Python and NumPy."""
    losses = []
    for seed in range(2):
        torch.manual_seed(0)  # weights and data
        random.seed(seed)
        np.random.seed(seed)
        losses.append(fit(DRAWS[kind]))
    assert losses[0] == losses[1]
