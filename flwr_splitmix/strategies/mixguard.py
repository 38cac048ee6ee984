"""MixGuard and its baseline, naive mixing: the U shape with clients that hide what they send."""

from __future__ import annotations

from flwr_splitmix.hiding import MixGuard as MixGuardHiding
from flwr_splitmix.hiding import NaiveMix
from flwr_splitmix.strategies.ushape import UShapeStrategy


class MixGuard(UShapeStrategy):
    """Private split fine-tuning of language models.

    This is the server's half of MixGuard; the clients' half is `flwr_splitmix.hiding.MixGuard`.
    The server does not interpret the messages: it passes them through the trunk, as in any
    U-shaped strategy. Calibrators stay with their clients; so do heads and tails unless an
    aggregator is given.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: MixGuard, sections 4.2 to 4.5.
    """

    hiding = MixGuardHiding


class NaiveMixSL(UShapeStrategy):
    """Naive mixing of two texts' hidden states, which a server undoes: see `NaiveMix`.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: the baseline of MixGuard's Tables II and III.
    """

    hiding = NaiveMix
