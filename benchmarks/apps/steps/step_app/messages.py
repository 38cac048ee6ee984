"""Split learning by Flower messages alone, as one would write it from Flower's documentation.

Two messages a client and step. A graph does not outlive a message, so the client computes its
forward pass a second time for the backward.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor, nn

from .lenet import BATCH, CLIENTS, EXAMPLES, Split, images, lenet

load_data = lru_cache(images)


class MessagesServer:
    """The server's side: one call is one step with all clients."""

    def __init__(self, grid: Grid, model: Split) -> None:
        self.grid = grid
        self.nodes = list(grid.get_node_ids())[:CLIENTS]
        self.upper = model.upper
        self.optimizer = model.optimizer(self.upper.parameters())
        self.step = 0

    def __call__(self) -> None:
        """Take one step.

        Raises
        ------
        RuntimeError
            If a client answers with an error.
        """
        requests = {node: RecordDict({"config": self._config()}) for node in self.nodes}
        replies = self._exchange("forward", requests)
        smashed = {node: _tensor(r, "smashed").requires_grad_() for node, r in replies.items()}
        labels = torch.cat([_tensor(r, "labels") for r in replies.values()])
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.upper(torch.cat(list(smashed.values()))), labels)
        (loss * len(smashed)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        gradients = {node: _arrays(gradient=s.grad) for node, s in smashed.items() if s.is_leaf}
        self._exchange(
            "backward",
            {
                node: RecordDict({"config": self._config(), "arrays": arrays})
                for node, arrays in gradients.items()
            },
        )
        self.step += 1

    def _config(self) -> ConfigRecord:
        return ConfigRecord({"step": self.step})

    def _exchange(self, action: str, contents: dict[int, RecordDict]) -> dict[int, RecordDict]:
        replies = self.grid.send_and_receive(
            [
                Message(content, dst_node_id=node, message_type=f"{MessageType.TRAIN}.{action}")
                for node, content in contents.items()
            ]
        )
        replies = list(replies)
        if errors := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f"{action}: {errors[0]}")
        return {reply.metadata.src_node_id: reply.content for reply in replies}


def add_handlers(app: ClientApp) -> None:
    """Have a ClientApp answer `MessagesServer`."""

    @app.train("forward")
    def forward(message: Message, context: Context) -> Message:
        lower, inputs, labels = _load(message, context)
        content = RecordDict({"arrays": _arrays(smashed=lower(inputs), labels=labels)})
        return Message(content, reply_to=message)

    @app.train("backward")
    def backward(message: Message, context: Context) -> Message:
        lower, inputs, labels = _load(message, context)
        optimizer = lenet().optimizer(lower.parameters())
        lower(inputs).backward(_tensor(message.content, "gradient"))
        optimizer.step()
        context.state["lower"] = ArrayRecord(lower.state_dict())
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _load(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the lower segment as it was left, and the step's batch."""
    model = lenet()
    if "lower" in context.state:
        model.lower.load_state_dict(context.state.array_records["lower"].to_torch_state_dict())
    inputs, labels = load_data(int(context.node_config["partition-id"]), model.channels)
    step = int(str(message.content.config_records["config"]["step"]))
    start = step * BATCH % EXAMPLES
    return model.lower, inputs[start : start + BATCH], labels[start : start + BATCH]


def _arrays(**tensors: Tensor | None) -> ArrayRecord:
    return ArrayRecord({n: Array(t.detach().numpy()) for n, t in tensors.items() if t is not None})


def _tensor(content: RecordDict, name: str) -> Tensor:
    return torch.tensor(content.array_records["arrays"][name].numpy())
