"""A client with DP-SGD, and a step of it, for tests without a link."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flwr_splitmix.clients import Order
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.testing.toy_texts import TextToy

ORDER = Order(0, 7, 1, 1)


TOY = TextToy(clients=1, dropout=0.0)


QUIET = 1e-20
"""A noise multiplier that leaves the clipped gradients as they are."""


def step(
    client: Any, batch: MaskedBatch, trunk: Any, records: np.ndarray | None = None
) -> dict[str, torch.Tensor]:
    """Do what a step does, without the link; returns what head and tail would learn by."""
    client.segments.train()
    client.ends.optimizer.zero_grad()
    client.hiding.charge("train", np.arange(len(batch.inputs)) if records is None else records)
    sent = client.hiding.obfuscate(batch)
    leaf = sent.messages[0].detach().requires_grad_()
    outputs = trunk(leaf, batch.mask)
    client.loss(client.hiding.recover([outputs], sent), sent).backward()
    client.ends.backward(sent.messages, [leaf.grad])
    client.hiding.before_update()
    return {n: p.grad.clone() for n, p in client.segments.named_parameters() if p.grad is not None}
