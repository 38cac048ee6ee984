"""The run configuration of apps/vision, and what Flower hands to the app."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, RecordDict

from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.clients import SplitClient
from tests.apps.app_config import APPS, app_run_config

APP = APPS / "vision"


def run_config(**overrides: Any) -> dict[str, Any]:
    """Return the app's run configuration with some keys changed (`_` for `-`)."""
    return app_run_config("vision", overrides)


def context(client: int, num_clients: int, config: dict[str, Any]) -> Context:
    """Return what Flower hands to a client_fn."""
    return Context(
        run_id=1,
        node_id=client + 1,
        node_config={"partition-id": client, "num-partitions": num_clients},
        state=RecordDict(),
        run_config=config,
    )


def split_client(client: int, num_clients: int, config: dict[str, Any]) -> SplitClient:
    """Return what the app's client_fn makes of a node of the L shape."""
    app_client = client_fn(context(client, num_clients, config))
    assert isinstance(app_client, SplitClient)
    return app_client


class Nodes:
    """A grid that knows nothing but its nodes: each look finds one more, up to `number`."""

    def __init__(self, number: int, at_first: int | None = None) -> None:
        self.number = number
        self.there = number if at_first is None else at_first

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that are there now."""
        count, self.there = self.there, min(self.there + 1, self.number)
        return list(range(100, 100 + count))
