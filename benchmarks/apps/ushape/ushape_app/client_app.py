"""The ClientApp: one client of the plain U shape with random texts."""

from __future__ import annotations

from flwr.app import Context

from flwr_splitmix import SplitClientApp
from flwr_splitmix.clients import UShapeClient

from .models import SIZES, build, plain_client


def client_fn(context: Context) -> UShapeClient:
    """Make the client."""
    size = SIZES[str(context.run_config["size"])]
    return plain_client(build(size), size)


app = SplitClientApp(client_fn)
