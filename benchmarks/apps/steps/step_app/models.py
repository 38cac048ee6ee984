"""The models that are timed, whole and split, and random images for them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import SplitClient, adamw, split_vision_model
from flwr_splitmix.schedule import OptimizerFactory, constant

CLIENTS, BATCH, CLASSES = 10, 32, 10
EXAMPLES = 4 * BATCH
"""Of each client."""


class Split(NamedTuple):
    """A model in two segments, and its optimizer."""

    lower: nn.Module
    upper: nn.Module
    optimizer: OptimizerFactory
    channels: int


def vit(depth: int) -> Split:
    """ViT-Tiny cut at the embedding: 64 patches of width 192 an image, 1.6 MB a client."""
    model = split_vision_model(patch_size=4, depth=depth, channels=3, seed=0)
    return Split(model.lower, model.upper, adamw(), 3)


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


class NearlyEmpty(nn.Module):
    """An upper segment that costs next to nothing but has a dense cut-layer gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, CLASSES)

    def forward(self, smashed: Tensor) -> Tensor:
        """Classify the mean patch."""
        logits: Tensor = self.head(smashed.mean(1))
        return logits


def images(client: int, channels: int, examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    """Draw one client's random images (examples, channels, 32, 32) and labels."""
    rng = torch.Generator().manual_seed(client)
    return (
        torch.randn(examples, channels, 32, 32, generator=rng),
        torch.randint(CLASSES, (examples,), generator=rng),
    )


def make_client(client: int, model: Split) -> SplitClient:
    """Make one client with a lower segment of its own."""
    return SplitClient(
        copy.deepcopy(model.lower),
        TensorDataset(*images(client, model.channels)),  # type: ignore[arg-type]
        batch_size=BATCH,
        optimizer=model.optimizer,
        schedule=constant,
        device="cpu",
    )


class Unsplit:
    """The whole model, trained on the concatenated batch as one would without any of this."""

    def __init__(self, model: Split) -> None:
        self.model = nn.Sequential(copy.deepcopy(model.lower), copy.deepcopy(model.upper))
        self.optimizer = model.optimizer(self.model.parameters())
        self.inputs, self.labels = images(0, model.channels, CLIENTS * BATCH)

    def __call__(self) -> None:
        """Take one step: forward, loss, backward, optimizer."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.inputs), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()
