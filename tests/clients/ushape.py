"""An attached U-shaped client, and its two exchanges."""

from __future__ import annotations

from typing import Any

from flwr_splitmix.clients import Order, UShapeClient
from flwr_splitmix.testing.laws import TextToy

ORDER = Order(0, 7, 1, 1)


def attached(toy: TextToy | None = None, **options: Any) -> UShapeClient:
    client = (toy or TextToy(clients=1)).clients_for(**options)[0]
    client.attach(ORDER, None)
    return client


def encode(client: UShapeClient, number: int = 0, **arguments: Any) -> dict[str, Any]:
    return client.run("encode", {"number": number, "progress": 0.0, "gradient": None, **arguments})


def decode(client: UShapeClient, sent: dict[str, Any]) -> dict[str, Any]:
    return client.run("decode", {"number": 0, "outputs": sent["messages"]})
