"""Texts that a client sent in a recorded run: what the server has of them, and which they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.recording.trace import Trace
from flwr_splitmix.attacks.recording.vault import NO_TRUTH, VaultError
from flwr_splitmix.attacks.texts.releasing import (
    MIN_TOKENS,
    Released,
    TextOrigin,
    releases_of,
)
from flwr_splitmix.attacks.texts.view import TextRelease
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.data.texts.text_set import TextSet


def recorded_texts(
    trace: Trace,
    data: TextSet,
    head: nn.Module,
    max_texts: int,
    rng: np.random.Generator,
    *,
    client: int,
    batch_size: int,
    seed: int,
) -> Released:
    """Return texts of a client as its newest recorded steps have them, each once.

    Which texts a batch held follows from the run's seed, as for images (`Vault`).

    Parameters
    ----------
    data
        The client's training texts.
    head
        Its trained head, for the origins' states.
    max_texts
        Most texts; they are drawn from as few steps as have so many that are long enough.
    batch_size, seed
        The run's.

    Raises
    ------
    VaultError
        If the recorded masks are shorter than these texts.
    """
    by_row: dict[int, TextRelease] = {}
    for step in trace.backwards():
        if len(by_row) >= max_texts:
            break
        if not isinstance(step, UShapeStep) or client not in step.messages:
            continue
        rows = batch_indices(len(data), batch_size, seed, client, step.drawn[client])
        mask = step.masks[client]
        texts = [data.texts[row] for row in rows]
        if len(mask) != len(texts) or any(
            len(ids) > int(text_mask.sum()) for ids, text_mask in zip(texts, mask, strict=True)
        ):
            raise VaultError(
                f"client {client} sent other messages in step {step.number} of round "
                f"{step.server_round} than its texts here make: {NO_TRUTH}"
            )
        releases = releases_of(
            _stacked(step.messages[client]),
            mask,
            *(
                _stacked(kind[client]) if kind.get(client) else None
                for kind in (step.outputs, step.returned)
            ),
        )
        for row, ids, release in zip(rows.tolist(), texts, releases, strict=True):
            if len(ids) >= MIN_TOKENS:
                by_row.setdefault(row, release)
    drawn = [int(row) for row in rng.permutation(sorted(by_row))[:max_texts]]
    origins = [_origin(head, data.texts[row]) for row in drawn]
    return Released([by_row[row] for row in drawn], origins)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).float()


@torch.no_grad()
def _origin(head: nn.Module, ids: Tensor) -> TextOrigin:
    """Return the origin of a text that was sent without secret tokens."""
    states = head(ids[None], torch.ones(1, len(ids), dtype=torch.int64))[0]
    return TextOrigin(ids, torch.arange(len(ids)), states)
