"""Public texts that clients send both mixed and plain to calibrate, as a server sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.releasing import attach_hiding
from flwr_splitmix.attacks.texts.view import PublicRelease
from flwr_splitmix.events import Exchange
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.calibrating import Calibrating
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.storage import load_tensors, save_tensors

MAX_TEXTS = 600
"""Number of newest texts kept: their heads are nearest to those under attack."""

MAX_NUMBERS = 2**26
"""Numbers, a quarter of a GB, after which no further batch of public texts is released again."""


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

    def __init__(self, limit: int = MAX_TEXTS) -> None:
        self.releases: deque[PublicRelease] = deque(maxlen=limit)

    def on_exchange(self, event: Exchange) -> None:
        """Keep the public texts of a reply, if any; what is no such text is left to the intake."""
        if event.direction == "up":
            self.releases.extend(_releases_of(event.payload.get("public")))


def released_again(
    before: LanguageParts,
    trained: LanguageParts,
    make: Callable[[], Hiding],
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]],
    *,
    client: int,
    batch_size: int,
    seed: int,
) -> list[PublicRelease]:
    """Send the newest public texts once more that a client has calibrated on in a run.

    They are those of the run's batches, hidden with draws of their own. Texts of its calibration
    before the first batch are sent by the head that it had then, all later ones by the trained one.

    Parameters
    ----------
    before, trained
        Parts as they were before training, and as they are.
    make, state
        Makes the client's hiding; the state that it was left with.
    client, batch_size, seed
        The client's index; the run's batch size and seed.

    Returns
    -------
    At most `MAX_TEXTS` texts, oldest first; none if the client did not calibrate.
    """
    newest: list[PublicRelease] = []
    numbers = 0
    for parts, later in ((trained, True), (before, False)):
        hiding = make()
        if not isinstance(hiding, Calibrating):
            return []
        attach_hiding(parts, hiding, client=client, batch_size=batch_size, state=state, seed=seed)
        for number in reversed(hiding.public_batches()[later]):
            if len(newest) >= MAX_TEXTS or numbers >= MAX_NUMBERS:
                break
            with torch.no_grad():
                groups = hiding.public_groups(hiding.obfuscate(hiding.public_batch_of(number)))
            batch = _releases_of([group.outgoing() for group in groups])
            newest += reversed(batch)
            numbers += sum(one.messages.numel() + one.states.numel() for one in batch)
    return newest[:MAX_TEXTS][::-1]


def _releases_of(groups: object) -> list[PublicRelease]:
    """Return the public texts that a client sent; none if it sent something else."""
    if not isinstance(groups, (list, tuple)) or len(groups) != 2:
        return []
    hidden, plain = (_group_messages(group) for group in groups)
    if hidden is None or plain is None or len(hidden[1]) != len(plain[1]):
        return []
    (messages, mask), ((states, *_), own_mask) = hidden, plain
    return [
        PublicRelease(
            messages[:, row, : _end(mask[row])].clone(), states[row, : _end(own_mask[row])].clone()
        )
        for row in range(len(states))
    ]


def _group_messages(group: object) -> tuple[Tensor, Tensor] | None:
    """Return a group's messages (m, b, T, d) and mask (b, T); None if they are something else."""
    if not isinstance(group, Mapping):
        return None
    messages, mask = _stacked_tensors(group.get("messages")), group.get("mask")
    if messages is None or messages.dim() != 4 or not isinstance(mask, Tensor):
        return None
    if mask.shape != messages.shape[1:3] or not bool(mask.any(1).all()):
        return None
    return messages, mask.cpu()


def _stacked_tensors(tensors: object) -> Tensor | None:
    """Return tensors stacked, on the CPU; None if they are something else, or of several kinds.

    Observers see a reply before the server checks it.
    """
    if not isinstance(tensors, (list, tuple)) or not tensors:
        return None
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        return None
    if len({(tensor.shape, tensor.dtype) for tensor in tensors}) > 1:
        return None
    return torch.stack([tensor.detach().cpu() for tensor in tensors])


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
