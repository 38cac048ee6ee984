"""Batches that clients of the U shape really sent, and the division of data in a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import trace_dir
from flwr_splitmix.storage import load_tensors, save_tensors


class SentBatches:
    """Keeps every training batch of all clients of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._batches: dict[int, list[tuple[SentBatch, list[Tensor]]]] = defaultdict(list)
        run = UShapeClient.run

        def recorded_run(client: UShapeClient, method: str, arguments: Any) -> dict[str, Any]:
            reply = run(client, method, arguments)
            if method == "decode":
                assert client._flying is not None
                sent = client._flying.sent
                self._batches[client.order.client].append((sent, reply["gradients"]))
            return reply

        monkeypatch.setattr(UShapeClient, "run", recorded_run)

    def of(self, client: int | None, step: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return a client's inputs, messages and returned gradients in a step of the run."""
        assert client is not None
        sent, returned = self._batches[client][step]
        return sent.batch.inputs, torch.stack(sent.messages).detach(), returned


def divide(run: Run, partitions: Mapping[int, int]) -> None:
    """Write into the newest checkpoint what nodes say of the parts of the data."""
    checkpoint = run.checkpoints.load()
    numbers = {str(client): parts for client, parts in partitions.items()}
    run.checkpoints.save(
        checkpoint.round, checkpoint.tensors, {**checkpoint.meta, "partitions": numbers}
    )


def damage_steps(run: Run) -> None:
    """Take out of each recorded step how many batches a client had drawn."""
    for file in trace_dir(run).glob("step-*"):
        tensors, meta = load_tensors(file, digested=False)
        remaining = {name: meta[name] for name in meta if name != "drawn"}
        save_tensors(file, tensors, remaining, digested=False)
