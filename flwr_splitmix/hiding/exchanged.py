"""A hiding's view of its client, and the messages that it makes of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.data.masked_batch import MaskedBatch


@dataclass(frozen=True)
class ClientSide:
    """A hiding's view of its client in a round.

    Parameters
    ----------
    head
        (ids int64 (b, T), mask (b, T)), or of other inputs (inputs (b, ...), mask (b, 1)), to
        hidden states (b, T, d).
    tail
        (hidden states (b, T, d), the same mask) to logits (b, T, V) or (b, L).
    device
        Device of both.
    width
        d of the hidden states.
    batch_size
        Examples in a training batch.
    seed, client
        The run's seed and the client's index, from which every public draw is derived.
    examples
        Number of the client's examples by purpose: "train", and the kinds of evaluation.
    attempt
        How often the same may have been asked of the client before.
    earlier
        The training examples that it may have sent in these attempts: int64 indices of one batch,
        or of several that have no example in common. If the round was longer then, they are more
        than this round's. They are drawn as they are read, which is possible once.
    uncounted
        Whether it may have sent more, an unknown number.
    averaged
        Whether head and tail leave the client at the end of the round.
    returns
        Whether gradients are returned to the trunk in training.
    padded
        Whether masks may reveal lengths: of texts, or of whatever a hiding's own `obfuscate` masks.
    seeded
        Whether a node keeps the ledger, and noise is drawn from the run's seed: it counts as none.
    """

    head: nn.Module
    tail: nn.Module
    device: torch.device
    width: int
    batch_size: int
    seed: int
    client: int
    examples: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0
    earlier: Iterable[np.ndarray] = ()
    uncounted: bool = False
    averaged: bool = False
    returns: bool = True
    padded: bool = True
    seeded: bool = False


@dataclass
class SentBatch:
    """A batch's messages to the trunk, with what the client needs to read the answer.

    Parameters
    ----------
    messages
        Tensors (b, T, d) in the head's graph.
    mask
        int64 (b, T): positions that the trunk attends to; or (b, 1), the same at all positions.
    batch
        The texts, or other inputs, that the answer is about.

    A subclass may add what it needs to read the answer; that stays at the client.

    Attributes
    ----------
    local
        (b, T, d) in the head's graph: the part of `recover`'s result that comes directly from the
        head, if any; `recover` sets it. The loss's gradient there goes to the head without
        crossing the link.
    penalty
        A scalar in the head's graph that the head's step minimises in addition to the loss, if
        any. Neither it nor its gradient crosses the link.
    """

    messages: list[Tensor]
    mask: Tensor
    batch: MaskedBatch
    local: Tensor | None = field(default=None, init=False)
    penalty: Tensor | None = field(default=None, init=False)

    def outgoing(self) -> dict[str, Any]:
        """Return what the server gets: messages without a graph, and the mask (b, T) as uint8."""
        mask = self.mask.to(torch.uint8)
        if mask.shape[1] == 1:
            mask = mask.expand(-1, self.messages[0].shape[1]).contiguous()
        return {"messages": [message.detach() for message in self.messages], "mask": mask}
