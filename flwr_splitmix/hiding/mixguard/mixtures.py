"""What a client of MixGuard has sent of a batch, and what it alone knows of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flwr_splitmix.hiding.hiding import Sent
from flwr_splitmix.hiding.mixguard.secret import Secret


@dataclass
class Mixtures(Sent):
    """What a client has sent of a batch, and what it alone knows.

    Parameters
    ----------
    secret
        How the messages were mixed.
    hidden
        (b, T, d) of the target; in the head's graph only where decoding adds to it.
    own_mask
        (b, T): where the target has tokens of its own.
    positions
        int64 (b, t): where its tokens are among the secret ones.
    """

    secret: Secret
    hidden: Tensor
    own_mask: Tensor
    positions: Tensor


def as_mixtures(sent: Sent) -> Mixtures:
    """Return what was sent, which MixGuard has mixed."""
    assert isinstance(sent, Mixtures)
    return sent
