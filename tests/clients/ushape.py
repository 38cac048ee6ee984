"""An attached U-shaped client, its two exchanges, and parts for one of patches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients import Order, UShapeClient
from flwr_splitmix.testing.laws import TextToy

ORDER = Order(0, 7, 1, 1)


def attached(toy: TextToy | None = None, **options: Any) -> UShapeClient:
    client = (toy or TextToy(clients=1)).clients_for(**options)[0]
    client.attach(ORDER, None)
    return client


def encode(client: UShapeClient, number: int = 0, **arguments: Any) -> dict[str, Any]:
    return client.run("encode", {"number": number, "progress": 0.0, "gradient": None, **arguments})


def decode(client: UShapeClient, reply: dict[str, Any]) -> dict[str, Any]:
    return client.run("decode", {"number": 0, "outputs": reply["messages"]})


class Masked(nn.Module):
    """A head or a tail that takes a mask, too."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs)
        return hidden


PATCHES = nn.Linear(4, 3), torch.randn(8, 6, 4, generator=torch.Generator().manual_seed(0))
"""A head, and inputs of eight examples: six patches of four numbers."""
