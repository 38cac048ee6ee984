"""LeNet-5 in two segments and random images: nothing here needs more than PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

CLIENTS, BATCH, CLASSES = 10, 32, 10
EXAMPLES = 4 * BATCH
"""Of each client."""


class Split(NamedTuple):
    """A model in two segments, and its optimizer."""

    lower: nn.Module
    upper: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    channels: int


def lenet() -> Split:
    """LeNet-5 cut after its convolutions: 16 maps of 25 values an image, 51 kB a client."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lower = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Flatten(2),
        )  # fmt: skip
        upper = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(),
            nn.Linear(84, CLASSES),
        )  # fmt: skip
    return Split(lower, upper, sgd, 1)


def sgd(parameters: object) -> torch.optim.Optimizer:
    """Return an optimizer without state: a Flower message need not carry any."""
    return torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type]


def images(client: int, channels: int, examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    """Draw one client's random images (examples, channels, 32, 32) and labels."""
    rng = torch.Generator().manual_seed(client)
    return (
        torch.randn(examples, channels, 32, 32, generator=rng),
        torch.randint(CLASSES, (examples,), generator=rng),
    )
