"""The ClientApp: clients with random images, and the handlers of split learning by messages."""

from __future__ import annotations

from flwr.app import Context

from flwr_splitmix import SplitClient, SplitClientApp

from .lenet import lenet
from .messages import add_handlers
from .models import make_client, vit


def client_fn(context: Context) -> SplitClient:
    """Make the client of one node."""
    config = context.run_config
    model = vit(int(config["depth"])) if config["model"] == "vit" else lenet()
    return make_client(int(context.node_config["partition-id"]), model)


app = SplitClientApp(client_fn)
add_handlers(app)
