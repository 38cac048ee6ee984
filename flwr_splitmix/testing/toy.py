"""A tiny float64 model with dropout and BatchNorm on both sides of its cut, and data for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from flwr_splitmix.clients import Client, SplitClient
from flwr_splitmix.data.examples import Example
from flwr_splitmix.events import Exchange
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import constant
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments import Geometry

FEATURES = 4
HIDDEN = 7

MakeAny = Callable[..., Any]
"""Function that makes a strategy from the server's segment and options."""


class AnyToy(Protocol):
    """A toy of either shape, as used by the laws that apply to both."""

    @property
    def tests(self) -> int:
        """Number of test examples of each client."""

    def server(self) -> nn.Module:
        """Make the server's segment."""

    def clients_for(
        self, strategy: Any, optimizer: OptimizerFactory | None = None, **options: Any
    ) -> Sequence[Client]:
        """Make the clients that a strategy needs."""


def step_of(event: Exchange) -> int:
    """Return the step of the round, from 0, that an event begins; -1 if it begins none."""
    payload = event.payload
    begins = event.phase == "train" and event.direction == "down" and "progress" in payload
    return int(payload["number"]) if begins and not payload.get("part") else -1


def sgd(lr: float = 1.0, momentum: float = 0.0) -> OptimizerFactory:
    """Return a factory of SGD, which reveals a wrong factor of a gradient; AdamW hides it."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum)


class Examples(Dataset[Example]):
    """Inputs and labels in memory."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return self.inputs[index], self.labels[index]

    def batch(self, indices: np.ndarray) -> Example:
        """Return the examples at `indices` as one batch."""
        return self.inputs[indices], self.labels[indices]


class ToyLower(nn.Module):
    """Map from inputs (b, N, FEATURES) to smashed data (b, prefix + N, d)."""

    def __init__(self, geometry: Geometry, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.geometry = geometry
        n, d = geometry.patches, geometry.width
        self.embed = nn.Linear(FEATURES, d)
        self.position = nn.Parameter(torch.randn(n, d))
        self.norm = nn.BatchNorm1d(d) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        # A prefix token depends on all patches, as after an attention block.
        self.prefix = nn.Linear(n * d, geometry.prefix * d) if geometry.prefix else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed each patch, and make the prefix tokens from all patches."""
        tokens: Tensor = self.norm(self.embed(inputs).transpose(1, 2)).transpose(1, 2)
        tokens = self.dropout(torch.tanh(tokens) + self.position)
        if self.prefix is None:
            return tokens
        prefix = self.prefix(tokens.flatten(1)).view(len(tokens), -1, tokens.shape[2])
        return torch.cat([prefix, tokens], dim=1)


class ToyUpper(nn.Sequential):
    """Map from smashed data (b, prefix + N, d) to logits (b, L); each depends on all tokens."""

    def __init__(
        self, geometry: Geometry, num_classes: int, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(geometry.tokens * geometry.width, HIDDEN),
            nn.BatchNorm1d(HIDDEN) if batch_norm else nn.Identity(),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(HIDDEN, num_classes),
        )
        self.geometry = geometry
        self.num_classes = num_classes


@dataclass(frozen=True)
class Toy:
    """A model, its cut and its clients; equal fields give equal weights and data.

    Parameters
    ----------
    clients
        Number of clients n.
    patches, width, prefix
        Shape of the smashed data.
    classes, batch
        Numbers of classes, and of examples per batch.
    examples, tests
        Number of training examples of each client, or one number for all; number of test examples
        of each.
    dropout, batch_norm
        Dropout rate, and whether to use BatchNorm, in both segments.
    multi_label
        Whether an example may have any number of the classes; pass it to the strategy, too.
    edge
        Description of a frozen lower segment's shuffle, for strategies with frozen edges; the
        toy's segment is frozen, but does not shuffle. None: a trained lower segment.
    seed
        Seed of weights and data.
    """

    clients: int = 5
    patches: int = 6
    width: int = 3
    prefix: int = 0
    classes: int = 3
    batch: int = 4
    examples: int | tuple[int, ...] = 12
    tests: int = 0
    dropout: float = 0.3
    batch_norm: bool = True
    multi_label: bool = False
    edge: Mapping[str, Any] | None = None
    seed: int = 0

    @property
    def geometry(self) -> Geometry:
        """Shape of the smashed data."""
        # The upper segment distinguishes slots by its own weights, whatever patch is in them.
        return Geometry(self.patches, self.width, self.prefix, self.grid, positions="none")

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the patches: two rows, or one if their number is odd."""
        return (2, self.patches // 2) if self.patches % 2 == 0 else (1, self.patches)

    def lower(self) -> ToyLower:
        """Make the initial lower segment, the same for all clients."""
        with seeded_draws(torch.device("cpu"), 1000 * self.seed + 1):
            lower = ToyLower(self.geometry, self.dropout, self.batch_norm).double()
        if self.edge is not None:
            lower.requires_grad_(False)
            lower.edge = dict(self.edge)  # type: ignore[assignment]
        return lower

    def upper(self) -> ToyUpper:
        """Make the upper segment."""
        with seeded_draws(torch.device("cpu"), 1000 * self.seed):
            upper = ToyUpper(self.geometry, self.classes, self.dropout, self.batch_norm)
            return upper.double()

    def data(self, client: int) -> Examples:
        """Make one client's training examples: (inputs (N, FEATURES), label), float64 and int64.

        The label is a class, or (classes,) of 0 and 1 if the toy is multi-label.
        """
        size = self.examples if isinstance(self.examples, int) else self.examples[client]
        return self._draw(size, client)

    def labels(self) -> list[Tensor]:
        """Return the labels of each client's training examples."""
        return [self.data(client).labels for client in range(self.clients)]

    def test_data(self, client: int) -> Examples | None:
        """Make one client's test examples, if the toy has any."""
        return self._draw(self.tests, 10_000 + client) if self.tests else None

    def _draw(self, size: int, place: int) -> Examples:
        source = torch.Generator().manual_seed(1000 * self.seed + place)
        shape = (size, self.patches, FEATURES)
        inputs = torch.randn(shape, generator=source, dtype=torch.float64)
        # Labels depend on the inputs, so that they can be learnt.
        means = inputs.mean(1)[:, : self.classes]
        return Examples(inputs, (means > 0).long() if self.multi_label else means.argmax(1))

    def make_clients(
        self,
        optimizer: OptimizerFactory | None = None,
        kind: type[SplitClient] = SplitClient,
        **options: Any,
    ) -> Sequence[SplitClient]:
        """Make all clients; `options` are those of `SplitClient`. Their secrets are repeatable."""
        defaults = {"schedule": constant, "device": "cpu", "repeatable_secrets": True}
        options = {**defaults, **options}
        return [
            kind(
                self.lower(),
                self.data(client),
                batch_size=self.batch,
                test_data=self.test_data(client),
                optimizer=optimizer or sgd(),
                **options,
            )
            for client in range(self.clients)
        ]

    def server(self) -> ToyUpper:
        """Make the upper segment."""
        return self.upper()

    def clients_for(
        self, strategy: Any, optimizer: OptimizerFactory | None = None, **options: Any
    ) -> Sequence[SplitClient]:
        """Make all clients, with the shares that the strategy's mixer requires."""
        return self.make_clients(optimizer, shares=strategy.mixer.shares, **options)
