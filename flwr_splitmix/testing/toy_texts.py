"""A tiny float64 language model with dropout in all three parts, and texts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flwr_splitmix.clients import MixGuardClient, TextSet, UShapeClient
from flwr_splitmix.hiding import Hiding, MixGuardOptions
from flwr_splitmix.hiding.making import make_hiding, needs_public, sources_of
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.toy import sgd

VOCABULARY = 23
SPECIAL_IDS = (0, 1)
MAX_LENGTH = 9


class ToyHead(nn.Module):
    """Map from token ids (b, T) to hidden states (b, T, d)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embed each token."""
        embedded: Tensor = self.dropout(self.words(ids))
        return embedded


class ToyTrunk(nn.Module):
    """Map from hidden states (b, T, d) to the same shape, from each token and those before it.

    Padding is ignored.
    """

    def __init__(self, width: int, dropout: float, *, affine: bool) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.past = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.bend = nn.Identity() if affine else nn.Tanh()
        self.width = width

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Combine each token with the mean of all tokens up to it."""
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        past = (hidden * weight).cumsum(1) / weight.cumsum(1).clamp(min=1)
        mixed: Tensor = self.dropout(self.bend(self.own(hidden) + self.past(past)))
        return mixed


class ToyTail(nn.Module):
    """Map from hidden states (b, T, d) to logits: of next tokens (b, T, V), or of texts (b, L)."""

    def __init__(self, width: int, dropout: float, classes: int | None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, classes or VOCABULARY)
        self.pools = classes is not None

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits of each token, or of the mean of each text's tokens."""
        if self.pools:
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            hidden = (hidden * weight).sum(1) / weight.sum(1)
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


@dataclass(frozen=True)
class TextToy:
    """A model in three parts and its clients; equal fields give equal weights and texts.

    Parameters
    ----------
    kind
        Class of the clients.
    hiding
        Factory of each client's hiding; None for the default of `kind`.
    clients
        Number of clients.
    task
        Whether the tail has logits of next tokens or of texts.
    width, classes, batch
        Width of hidden states, number of classes, and number of texts per batch.
    examples, tests
        Numbers of training and test texts of each client.
    dropout
        Dropout rate in all three parts.
    affine
        Whether the trunk is affine, so that MixGuard decodes exactly.
    options
        Options of MixGuard's clients.
    seed
        Seed of weights and texts.
    """

    kind: type[UShapeClient] = UShapeClient
    hiding: Callable[[], Hiding] | None = None
    clients: int = 3
    task: Literal["classification", "generation"] = "generation"
    width: int = 5
    classes: int = 3
    batch: int = 4
    examples: int = 12
    tests: int = 0
    dropout: float = 0.3
    affine: bool = False
    options: MixGuardOptions = field(
        default_factory=lambda: MixGuardOptions(secret_tokens=2, max_length=32)
    )
    seed: int = 0

    def head(self) -> ToyHead:
        """Make the initial head, the same for all clients."""
        with self._seeded(1):
            return ToyHead(self.width, self.dropout).double()

    def server(self) -> ToyTrunk:
        """Make the trunk."""
        with self._seeded(2):
            return ToyTrunk(self.width, self.dropout, affine=self.affine).double()

    def tail(self) -> ToyTail:
        """Make the initial tail, the same for all clients."""
        classes = self.classes if self.task == "classification" else None
        with self._seeded(3):
            return ToyTail(self.width, self.dropout, classes).double()

    def texts(self, place: int, size: int) -> TextSet:
        """Make `size` labelled texts of 3 to `MAX_LENGTH` tokens; labels depend on the tokens."""
        source = torch.Generator().manual_seed(1000 * self.seed + place)
        lengths = torch.randint(3, MAX_LENGTH + 1, (size,), generator=source).tolist()
        texts = [
            torch.randint(len(SPECIAL_IDS), VOCABULARY, (length,), generator=source)
            for length in lengths
        ]
        if self.task == "generation":
            return TextSet(texts, [text.clone() for text in texts])
        return TextSet(texts, [int(text.sum()) % self.classes for text in texts])

    def clients_for(
        self, strategy: Any = None, optimizer: OptimizerFactory | None = None, **options: Any
    ) -> Sequence[UShapeClient]:
        """Make all clients; `options` are those of `UShapeClient`. Their secrets are repeatable."""
        client_options: dict[str, Any] = {
            "schedule": constant,
            "device": "cpu",
            "repeatable_secrets": True,
            "batch_size": self.batch,
            "optimizer": optimizer or sgd(),
            **options,
        }
        return [self._client(client, client_options) for client in range(self.clients)]

    def _client(self, client: int, options: dict[str, Any]) -> UShapeClient:
        if self.hiding is not None:
            options = {**options, "hiding": self.hiding()}
        test = self.texts(10_000 + client, self.tests) if self.tests else None
        parts = (self.head(), self.tail(), self.texts(client, self.examples))
        if issubclass(self.kind, MixGuardClient):
            return self.kind(
                *parts,
                self.texts(20_000, self.examples),
                vocab_size=VOCABULARY,
                special_ids=SPECIAL_IDS,
                options=self.options,
                test_data=test,
                **options,
            )
        return self.kind(*parts, test_data=test, **options)

    @contextmanager
    def _seeded(self, part: int) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + part)
            yield


OPTIONS: dict[str, Any] = {"calibration_epochs": 1, "eta": 20.0}
"""Options of hidings, other than their defaults, with which the toy is fast and learns."""


def toy_hiding(strategy: str) -> Hiding:
    """Make the hiding of a client of a strategy of the U shape."""
    kind = USHAPE_STRATEGIES[strategy].hiding
    arguments: dict[str, Any] = {**OPTIONS, "vocab_size": VOCABULARY, "special_ids": SPECIAL_IDS}
    if needs_public(kind):
        arguments["public"] = TextToy().texts(20_000, 12)
    return make_hiding(kind, sources_of(arguments))


def text_toy(strategy: str, **fields: Any) -> TextToy:
    """Make a toy with the clients and the hiding of a strategy of the U shape."""
    options = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=1)
    defaults: dict[str, Any] = {"hiding": partial(toy_hiding, strategy), "options": options}
    if strategy == "MixGuard":
        defaults |= {"kind": MixGuardClient, "hiding": None}
    return TextToy(**{**defaults, **fields})
