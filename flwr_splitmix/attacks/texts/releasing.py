"""Release of texts under a method as a server receives them: victims' or an attacker's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.recording.returning import returned_gradients
from flwr_splitmix.attacks.texts.view import TextRelease
from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import ClientSide, Hiding, SentBatch
from flwr_splitmix.segments.language import LanguageParts

__all__ = [
    "MIN_TOKENS",
    "Released",
    "TextOrigin",
    "attach_hiding",
    "draw_victims",
    "fill_step",
    "freeze_parts",
    "release_texts",
    "releases_of",
]

MIN_TOKENS = 4
"""Minimum number of tokens of a victim; shorter texts are not attacked."""


@dataclass(frozen=True)
class TextOrigin:
    """The truth behind a release: for the score only, or of an attacker's own text.

    Parameters
    ----------
    ids
        int64 (t,): the text.
    places
        int64 (t,): positions of its tokens in the release; not 0..t-1 with secret tokens.
    states
        (t, d): the head's hidden states at these places.
    """

    ids: Tensor
    places: Tensor
    states: Tensor


@dataclass(frozen=True)
class Released:
    """Releases, each with its origin."""

    releases: list[TextRelease]
    origins: list[TextOrigin]


def draw_victims(data: TextSet, max_texts: int, rng: np.random.Generator) -> list[int]:
    """Draw texts to attack: indices of at most `max_texts` that are long enough."""
    long = [place for place, ids in enumerate(data.texts) if len(ids) >= MIN_TOKENS]
    return [int(place) for place in rng.permutation(long)[:max_texts]]


def fill_step(
    chosen: Sequence[tuple[TextSet, int]], data: TextSet, batch_size: int
) -> list[tuple[TextSet, int]]:
    """Return chosen texts, followed by others that fill the last step of so many.

    These are other texts of `data` in their order, over again if there are too few.
    """
    chosen_places = {place for of, place in chosen if of is data}
    others = [place for place in range(len(data)) if place not in chosen_places] or range(len(data))
    missing = islice(cycle(others), -len(chosen) % batch_size)
    return [*chosen, *((data, place) for place in missing)]


def freeze_parts(parts: LanguageParts) -> LanguageParts:
    """Put all parts into evaluation mode without gradients, in float32, and return them."""
    for part in parts.all_here():
        part.eval().requires_grad_(False).float()
    return parts


def attach_hiding(
    parts: LanguageParts,
    hiding: Hiding,
    *,
    client: int = 0,
    batch_size: int = 1,
    learns: Learns = "all",
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> Hiding:
    """Attach a new hiding to head and tail, restore its state if there is one, and return it."""
    head, _, tail = parts.all_here()
    hiding.attach(
        ClientSide(
            head,
            tail,
            next(head.parameters()).device,
            parts.width,
            batch_size,
            seed,
            client,
            returns=learns == "all",
        )
    )
    if state is not None:
        hiding.restore(*state)
    return hiding


def release_texts(
    parts: LanguageParts,
    hiding: Hiding,
    texts: Sequence[Tensor],
    *,
    labels: Sequence[int] | Sequence[Tensor] | None = None,
    batch_size: int = 1,
    gradients: bool = False,
    learns: Learns = "all",
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> Released:
    """Send texts as a client with this hiding would, in one training step per batch.

    Head and tail act as the client, the trunk as the server; no weights change.

    Parameters
    ----------
    parts
        Head, trunk and tail.
    hiding
        A hiding that is not attached yet.
    texts
        int64 (t,) each.
    labels
        A class per text, or per text the words that carry a loss, as in a `TextSet`; None predicts
        every token from those before it.
    batch_size
        Texts per step; they share a secret if the method has one per batch.
    gradients
        Whether to finish the step, with the trunk's outputs and the client's returned gradients.
    learns
        As for the client; with "tail" it returns no gradients.
    state
        State of the hiding to restore, with its calibrator or denoiser; None for a new one.
    seed
        For public draws.

    Returns
    -------
    Releases of single texts, in the texts' order, each cut to its mask.
    """
    head, trunk, _ = parts.all_here()
    attach_hiding(parts, hiding, batch_size=batch_size, learns=learns, state=state, seed=seed)
    released = Released([], [])
    data = TextSet(texts, texts if labels is None else labels)
    for start in range(0, len(data), batch_size):
        rows = range(start, min(start + batch_size, len(data)))
        example = data.batch(torch.tensor(rows).numpy())
        batch = MaskedBatch.of(example, next(head.parameters()).device)
        with torch.set_grad_enabled(gradients):
            upload = hiding.obfuscate(batch)
        messages = torch.stack([m.detach() for m in upload.messages])
        outputs = returned = None
        if gradients:
            with torch.no_grad():
                outputs = torch.stack([trunk(message, upload.mask) for message in messages])
            returned = torch.stack(returned_gradients(hiding, outputs.unbind(), upload))
        states, places = _target_states(head, batch, upload)
        released.releases.extend(
            releases_of(messages, upload.mask, outputs, None if learns == "tail" else returned)
        )
        for row in range(len(batch.inputs)):
            length = int(batch.mask[row].sum())
            released.origins.append(
                TextOrigin(
                    batch.inputs[row, :length],
                    places[row, :length],
                    states[row, places[row, :length]],
                )
            )
    return released


def releases_of(
    messages: Tensor, mask: Tensor, outputs: Tensor | None, gradients: Tensor | None
) -> list[TextRelease]:
    """Return a server's release of each text of a step, cut to its mask.

    Parameters
    ----------
    messages, outputs, gradients
        (m, b, T, d): what the client sent, the trunk's outputs, and what it returned for them; None
        for what there was not.
    mask
        (b, T): 1 at the positions that the trunk attends to.
    """
    words = int((mask.sum(1) - 1).sum())
    releases = []
    for row, positions in enumerate(mask):
        end = int(positions.nonzero().max()) + 1
        text_messages, text_outputs, text_gradients = (
            None if part is None else part[:, row, :end] for part in (messages, outputs, gradients)
        )
        assert text_messages is not None
        batch = messages if len(mask) > 1 else None
        releases.append(
            TextRelease(text_messages, text_outputs, text_gradients, words, len(mask), batch, row)
        )
    return releases


@torch.no_grad()
def _target_states(
    head: torch.nn.Module, batch: MaskedBatch, upload: SentBatch
) -> tuple[Tensor, Tensor]:
    """Return the target's hidden states (b, T', d), and its tokens' positions in them (b, T)."""
    places = getattr(upload, "positions", None)
    hidden = getattr(upload, "hidden", None)
    if places is None or hidden is None:
        places = torch.arange(batch.inputs.shape[1]).expand_as(batch.inputs)
        hidden = head(batch.inputs, batch.mask)
    return hidden.detach(), places
