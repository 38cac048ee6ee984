"""A batch of MixGuard's messages, with the values that only the client knows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flwr_splitmix.hiding.exchanged import SentBatch
from flwr_splitmix.hiding.mixguard.secret import Secret


@dataclass
class Mixtures(SentBatch):
    """The messages of a batch, with the values that only the client knows.

    Parameters
    ----------
    secret
        How the messages were mixed.
    hidden
        (b, T, d), of the target; in the head's graph only if decoding adds to it.
    own_mask
        (b, T): 1 at the target's own tokens.
    positions
        int64 (b, t): positions of its tokens among the secret ones.
    """

    secret: Secret
    hidden: Tensor
    own_mask: Tensor
    positions: Tensor


def as_mixtures(sent: SentBatch) -> Mixtures:
    """Return `sent` as the mixtures that MixGuard makes."""
    assert isinstance(sent, Mixtures)
    return sent
