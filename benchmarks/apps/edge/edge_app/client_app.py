"""The ClientApp: a ViT-Tiny client at the far end of a line, which times its computing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.apps.steps.step_app.lenet import BATCH, images
from benchmarks.apps.steps.step_app.models import vit
from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.clients import exchange
from flwr_splitmix.links.ticket import Ticket, with_record
from flwr_splitmix.schedule import constant


class EdgeClient(SplitClient):
    """A client on a processor so many times slower, which times what it does for each upload."""

    slow_factor = 1.0
    out = Path()
    computing_s = 0.0
    computed_s: list[float]

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        """Take a step, slowly."""
        return self._timed(super().step, arguments)

    @exchange
    def encode_part(self, **arguments: Any) -> dict[str, Any]:
        """Make a part of a batch, slowly."""
        return self._timed(super().encode_part, arguments)

    @exchange
    def learn_part(self, **arguments: Any) -> dict[str, Any]:
        """Learn from a part of a batch, slowly."""
        return self._timed(super().learn_part, arguments)

    def _timed(
        self, method: Callable[..., dict[str, Any]], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        began = time.perf_counter()
        reply = method(**arguments)
        computed = time.perf_counter() - began
        time.sleep((self.slow_factor - 1) * computed)
        self.computing_s += self.slow_factor * computed
        # A step's last upload ends what is counted for it; what it brings back is the next one's.
        if arguments.get("plan") is not None and (
            arguments.get("part", 0) == arguments.get("parts", 1) - 1
        ):
            self.computed_s.append(self.computing_s)
            self.computing_s = 0.0
        return reply

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round, and write what was measured."""
        file = self.out / f"computed-{self.order.client}.json"
        file.write_text(json.dumps(self.computed_s))
        return super().release()


def client_fn(context: Context) -> SplitClient:
    """Make the client of one node; the lower segment is the patches' embedding."""
    config, index = context.run_config, int(context.node_config["partition-id"])
    model = vit(1)
    client = EdgeClient(
        model.lower,
        TensorDataset(*images(index, model.channels)),
        batch_size=BATCH,
        optimizer=model.optimizer,
        schedule=constant,
        device="cpu",
    )
    client.computed_s = []
    client.out = Path(str(config["out"]))
    if index == config["slow-node"]:
        client.slow_factor = float(config["slow-factor"])
    return client


class AtTheEndOfALine(SplitClientApp):
    """Dials its node's own line, which leads to the ServerApp, instead of the ServerApp."""

    def _take_part(self, message: Message, context: Context) -> Message:
        ticket = replace(Ticket.from_message(message), address=str(context.node_config["line"]))
        message.content = with_record(message.content, ticket.to_record())
        return super()._take_part(message, context)


app = AtTheEndOfALine(client_fn)
