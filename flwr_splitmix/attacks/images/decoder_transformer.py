"""A decoder that sees all tokens at once: a transformer with its own position embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from flwr_splitmix.attacks.images.networks.trained import TrainedAttack
from flwr_splitmix.attacks.images.networks.transformer import decoder_of
from flwr_splitmix.attacks.knowledge import Knowledge


class DecoderTransformer(TrainedAttack):
    """Trains a transformer on releases of public images; a known mask is a further input.

    It reconstructs patches that were not sent from those that were. At scale "paper" it has the
    size of an MAE decoder.
    """

    name: ClassVar[str] = "decoder-transformer"
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 3e-3})
    source: ClassVar[str] = "ours; at paper scale the MAE decoder of Patch Shuffling, section V"

    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Make the transformer."""
        return decoder_of(knowledge, width, self.budget.scale)
