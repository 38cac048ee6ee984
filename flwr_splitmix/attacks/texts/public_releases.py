"""Public texts that clients send both mixed and plain to calibrate, as a server sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.view import PublicRelease
from flwr_splitmix.events import Exchange
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.storage import load_tensors, save_tensors

LIMIT = 600
"""Number of newest texts kept: their heads are nearest to those under attack."""


class PublicReleases(Observer):
    """Keeps the newest public texts that were sent, as the server saw them.

    A method that calibrates sends them in two groups: hidden like private texts, and plain.

    Parameters
    ----------
    limit
        Most texts to keep.

    Attributes
    ----------
    releases
        The texts, oldest first, on the CPU.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.releases: deque[PublicRelease] = deque(maxlen=limit)

    def on_exchange(self, event: Exchange) -> None:
        """Keep the public texts of a reply, if any."""
        groups = event.payload.get("public") if event.direction == "up" else None
        if groups is None or len(groups) != 2:
            return
        sent, plain = groups
        messages, states = torch.stack(list(sent["messages"])), plain["messages"][0]
        for row in range(len(states)):
            end, own = _end(sent["mask"][row]), _end(plain["mask"][row])
            self.releases.append(
                PublicRelease(
                    messages[:, row, :end].detach().cpu().clone(),
                    states[row, :own].detach().cpu().clone(),
                )
            )


def _end(mask: Tensor) -> int:
    return int(mask.nonzero().max()) + 1


def save_public(path: Path, releases: Sequence[PublicRelease]) -> None:
    """Save the texts in one file."""
    tensors = {}
    for number, release in enumerate(releases):
        tensors[f"messages.{number}"] = release.messages.contiguous()
        tensors[f"states.{number}"] = release.states.contiguous()
    save_tensors(path, tensors, {"texts": len(releases)})


def load_public(path: Path) -> list[PublicRelease]:
    """Load the texts; return an empty list if there is no file."""
    if not path.exists():
        return []
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]
    tensors, meta = load_tensors(path)
    return [
        PublicRelease(tensors[f"messages.{number}"], tensors[f"states.{number}"])
        for number in range(int(meta["texts"]))
    ]
