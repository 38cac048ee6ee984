"""Public texts that clients send both mixed and plain to calibrate, as a server sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.attacks.recorder import stacked
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
        """Keep the public texts of a reply, if any; what is no such text is left to the intake."""
        groups = event.payload.get("public") if event.direction == "up" else None
        if not isinstance(groups, (list, tuple)) or len(groups) != 2:
            return
        hidden, plain = (_sent(group) for group in groups)
        if hidden is None or plain is None or len(hidden[1]) != len(plain[1]):
            return
        (messages, mask), ((states, *_), own_mask) = hidden, plain
        for row in range(len(states)):
            end, own = _end(mask[row]), _end(own_mask[row])
            self.releases.append(
                PublicRelease(messages[:, row, :end].clone(), states[row, :own].clone())
            )


def _sent(group: object) -> tuple[Tensor, Tensor] | None:
    """Return a group's messages (m, b, T, d) and mask (b, T); None if they are something else."""
    if not isinstance(group, Mapping):
        return None
    messages, mask = stacked(group, "messages"), group.get("mask")
    if messages is None or messages.dim() != 4 or not isinstance(mask, Tensor):
        return None
    if mask.shape != messages.shape[1:3] or not bool(mask.any(1).all()):
        return None
    return messages, mask.cpu()


def _end(mask: Tensor) -> int:
    return int(mask.nonzero().max()) + 1


def save_public(path: Path, releases: Sequence[PublicRelease]) -> None:
    """Save the texts in one file."""
    tensors = {}
    for number, release in enumerate(releases):
        tensors[f"messages.{number}"] = release.messages.contiguous()
        tensors[f"states.{number}"] = release.states.contiguous()
    save_tensors(path, tensors, {"texts": len(releases)}, private=True)


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
