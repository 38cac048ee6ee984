"""Release of texts under a method as a server receives them: victims' or an attacker's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.view import TextRelease
from flwr_splitmix.clients.ushape_client import Learns
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import ClientSide, Hiding, Sent
from flwr_splitmix.segments.language import LanguageParts

__all__ = [
    "LEAST_TOKENS",
    "Released",
    "TextOrigin",
    "draw_victims",
    "release_texts",
    "still",
]

LEAST_TOKENS = 4
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


def draw_victims(data: TextSet, wanted: int, rng: np.random.Generator) -> list[int]:
    """Draw texts to attack: indices of at most `wanted` that are long enough."""
    long = [place for place, ids in enumerate(data.texts) if len(ids) >= LEAST_TOKENS]
    return [int(place) for place in rng.permutation(long)[:wanted]]


def still(parts: LanguageParts) -> LanguageParts:
    """Put all parts into evaluation mode without gradients, in float32, and return them."""
    for part in parts.all_here():
        part.eval().requires_grad_(False).float()
    return parts


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
    head, trunk, tail = parts.all_here()
    hiding.attach(
        ClientSide(
            head,
            tail,
            next(head.parameters()).device,
            parts.width,
            batch_size,
            seed,
            client=0,
            returns=learns == "all",
        )
    )
    if state is not None:
        hiding.restore(*state)
    released = Released([], [])
    data = TextSet(texts, texts if labels is None else labels)
    for start in range(0, len(data), batch_size):
        rows = range(start, min(start + batch_size, len(data)))
        example = data.batch(torch.tensor(rows).numpy())
        batch = MaskedBatch.of(example, next(head.parameters()).device)
        with torch.set_grad_enabled(gradients):
            sent = hiding.obfuscate(batch)
        messages = torch.stack([m.detach() for m in sent.messages])
        outputs, returned = _finish(hiding, trunk, sent, messages) if gradients else (None, None)
        own, places = _own(head, batch, sent)
        words = int((sent.mask.sum(1) - 1).sum())
        for row in range(len(batch.inputs)):
            end = int(sent.mask[row].nonzero().max()) + 1
            length = int(batch.mask[row].sum())
            released.releases.append(
                TextRelease(
                    messages[:, row, :end],
                    None if outputs is None else outputs[:, row, :end],
                    None if returned is None or learns == "tail" else returned[:, row, :end],
                    words,
                    len(sent.mask),
                )
            )
            released.origins.append(
                TextOrigin(
                    batch.inputs[row, :length],
                    places[row, :length],
                    own[row, places[row, :length]],
                )
            )
    return released


def _finish(
    hiding: Hiding, trunk: torch.nn.Module, sent: Sent, messages: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the trunk's outputs and the client's gradients for them, each (m, b, T, d)."""
    with torch.no_grad():
        outputs = torch.stack([trunk(message, sent.mask) for message in messages])
    leaves = [output.clone().requires_grad_() for output in outputs]
    recovered = hiding.recover(leaves, sent)
    hidden = recovered.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(hiding.loss(hidden, sent), hidden)
    returned = torch.autograd.grad(
        recovered, leaves, hiding.perturb(gradient, hidden.detach(), sent)
    )
    return outputs, torch.stack(hiding.returned(returned, sent))


@torch.no_grad()
def _own(head: torch.nn.Module, batch: MaskedBatch, sent: Sent) -> tuple[Tensor, Tensor]:
    """Return the target's hidden states (b, T', d), and its tokens' positions in them (b, T)."""
    places = getattr(sent, "positions", None)
    hidden = getattr(sent, "hidden", None)
    if places is None or hidden is None:
        places = torch.arange(batch.inputs.shape[1]).expand_as(batch.inputs)
        hidden = head(batch.inputs, batch.mask)
    return hidden.detach(), places
