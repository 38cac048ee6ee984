"""Batch normalisation in the U shape, of rows: each is one token, so one value of each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import USplitSL

WIDTH, CLASSES = 5, 3


class Part(nn.Module):
    """Layers over rows (b, n) or their one token (b, 1, n), the other shape of which comes back."""

    def __init__(self, *layers: nn.Module, to_tokens: bool, from_tokens: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.to_tokens, self.from_tokens = to_tokens, from_tokens

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Apply the layers to (b, n)."""
        rows: Tensor = self.layers(inputs[:, 0] if self.from_tokens else inputs)
        return rows[:, None] if self.to_tokens else rows


def trained(part: str, norm: nn.Module, batch_size: int, tests: int = 4) -> USplitSL:
    """Train a client of eight rows for a round; one part begins with a layer."""

    def layers(name: str, size: int) -> list[nn.Module]:
        return [*([norm] if name == part else []), nn.Linear(WIDTH, size)]

    def rows(number: int) -> Any:
        return TensorDataset(torch.rand(number, WIDTH), torch.arange(number) % CLASSES)

    client = UShapeClient(
        Part(*layers("head", WIDTH), to_tokens=True, from_tokens=False),
        Part(*layers("tail", CLASSES), to_tokens=False, from_tokens=True),
        rows(8),
        test_data=rows(tests),
        batch_size=batch_size,
        device="cpu",
    )
    trunk = Part(*layers("trunk", WIDTH), to_tokens=True, from_tokens=True)
    strategy = USplitSL(trunk, device="cpu", steps_per_round=2, evaluation="federated")
    strategy.fit([client], 1)
    return strategy


def without_statistics() -> nn.Module:
    return nn.BatchNorm1d(WIDTH, track_running_stats=False)


def with_statistics() -> nn.Module:
    return nn.BatchNorm1d(WIDTH)


@pytest.mark.parametrize("norm", [with_statistics, without_statistics])
def test_a_head_of_it_is_probed_with_two_examples(norm: Callable[[], nn.Module]) -> None:
    """Without running statistics batch norm refuses a single one."""
    (row,) = trained("head", norm(), 4).rows
    assert row["clients_alive"] == 1
    assert row["eval_loss"] > 0


@pytest.mark.parametrize("part", ["head", "trunk", "tail"])
def test_a_batch_of_one_example_is_named_with_the_remedy(part: str) -> None:
    message = rf"batch normalisation in the {part} needs .*: take batches of two or more, or layers"
    with pytest.raises((LinkError, ValueError), match=message):
        trained(part, with_statistics(), 1)


@pytest.mark.parametrize("part", ["head", "tail"])
def test_a_last_test_batch_of_one_example_is_named(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained(part, without_statistics(), 4, tests=5)
    assert f"batch normalisation in the {part} needs" in caplog.text
