"""The ClientApp: a LeNet-5 client that times itself, or one that returns what it is sent."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.apps.steps.step_app.lenet import BATCH, Split, images, lenet
from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.clients import Client, Order, exchange
from flwr_splitmix.schedule import constant

from .bare_echo import answer_in_background


class TimedClient(SplitClient):
    """A client that writes how many milliseconds it computed in each step of a round."""

    def __init__(self, index: int, model: Split, out: Path) -> None:
        super().__init__(
            copy.deepcopy(model.lower),
            TensorDataset(*images(index, model.channels)),
            batch_size=BATCH,
            optimizer=model.optimizer,
            schedule=constant,
            device="cpu",
        )
        self.out = out
        self.computed_ms: list[float] = []

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        """Take a step, and time it."""
        began = time.perf_counter()
        reply = super().step(**arguments)
        self.computed_ms.append(1000 * (time.perf_counter() - began))
        return reply

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round, and write what was measured."""
        order = self.order
        file = self.out / f"computed-{order.server_round}-{order.client}.json"
        file.write_text(json.dumps(self.computed_ms))
        return super().release()


class EchoClient(Client):
    """A client without a model: it returns what it is sent, over the link and over bare gRPC."""

    def weights(self) -> dict[str, Tensor]:
        """Return none."""
        return {}

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round."""
        self._order = order
        return {"num-examples": 1}

    @exchange
    def echo(self, *, value: Tensor) -> dict[str, Any]:
        """Return the value."""
        return {"value": value}

    @exchange
    def dial(self, *, address: str, ca: str) -> dict[str, Any]:
        """Have a bare stream of this process answer, too."""
        answer_in_background(address, ca.encode(), self.order.client)
        return {}

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round."""
        return {}, {"num-examples": 1}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return nothing: no round depends on the one before."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Do nothing."""


def client_fn(context: Context) -> Client:
    """Make the client of one node."""
    config = context.run_config
    if config["what"] == "payloads":
        return EchoClient()
    return TimedClient(int(context.node_config["partition-id"]), lenet(), Path(str(config["out"])))


app = SplitClientApp(client_fn)
