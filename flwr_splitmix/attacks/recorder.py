"""The recorder of uploads and gradients, for attacks at the server of a U shape."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.events import Exchange
from flwr_splitmix.observers.observer import Observer


@dataclass(frozen=True)
class Recording:
    """One client's uploads of one step, on the CPU.

    Parameters
    ----------
    messages, gradients
        (m, b, T, d), as uploaded; no gradients for a pass without a backward, as in calibration.
    """

    server_round: int
    client: int
    messages: Tensor
    gradients: Tensor | None = None


class Recorder(Observer):
    """Keeps the newest `limit` uploads of each client of a U shape.

    Parameters
    ----------
    limit
        Recordings kept of each client; a recording is 2 m hidden states.

    Raises
    ------
    ValueError
        If limit is below 1.
    """

    def __init__(self, limit: int = 100) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1")
        self._kept: dict[int, deque[Recording]] = defaultdict(lambda: deque(maxlen=limit))

    @property
    def recordings(self) -> dict[int, list[Recording]]:
        """By client index, its recordings, oldest first."""
        return {client: list(kept) for client, kept in sorted(self._kept.items())}

    def on_exchange(self, event: Exchange) -> None:
        """Keep the messages of a training step, and join them with the gradients that follow."""
        if event.direction != "up" or event.phase != "train":
            return
        messages = _stacked(event.payload, "messages")
        gradients = _stacked(event.payload, "gradients")
        kept = self._kept[event.client]
        if messages is not None:
            kept.append(Recording(event.server_round, event.client, messages))
        if gradients is not None and kept and kept[-1].messages.shape == gradients.shape:
            kept[-1] = replace(kept[-1], gradients=gradients)


def _stacked(payload: Mapping[str, Any], name: str) -> Tensor | None:
    """Return the tensors of one shape under `name` as one of their own, None if there are none."""
    tensors = payload.get(name) or []
    if not tensors or any(tensor.shape != tensors[0].shape for tensor in tensors):
        return None
    return torch.stack([tensor.detach().cpu() for tensor in tensors])
