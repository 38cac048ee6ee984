"""MixGuard and its baseline, naive mixing: the U shape with clients that hide what they send."""

from __future__ import annotations

import logging
from typing import Unpack

from torch import nn

from flwr_splitmix.strategies.ushape import UShapeOptions, UShapeStrategy

log = logging.getLogger("flwr.splitmix")


class MixGuard(UShapeStrategy):
    """Private split fine-tuning of language models; its clients are `MixGuardClient`s.

    The server does not know what its messages are: it passes them through the trunk, like any
    U-shaped strategy's. Heads, tails and calibrators stay with their clients unless an aggregator
    is given.

    Parameters
    ----------
    trunk
        The trunk.
    **options
        See `UShapeStrategy`.

    Source: MixGuard (papers: mixguard), sections IV and V.
    """

    def __init__(self, trunk: nn.Module, **options: Unpack[UShapeOptions]) -> None:
        super().__init__(trunk, **options)

    def summary(self) -> None:
        """Log what the strategy is made of, and where to read what it does not hide."""
        super().summary()
        log.warning(
            "MixGuard does not hide the texts' hidden states from an attentive server: "
            "docs/mixguard.md says what it hides, with measured attacks"
        )


class NaiveMixSL(UShapeStrategy):
    """Naive mixing of two texts' hidden states; its clients are `NaiveMixClient`s.

    Parameters
    ----------
    trunk
        The trunk.
    **options
        See `UShapeStrategy`.

    Source: the baseline of MixGuard's Tables II and III.
    """

    def __init__(self, trunk: nn.Module, **options: Unpack[UShapeOptions]) -> None:
        super().__init__(trunk, **options)
