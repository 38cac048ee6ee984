"""The papers' decoder: two convolutions from the map of tokens to an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.images.embedding.patches import grid_of
from flwr_splitmix.attacks.images.networks.trained import TrainedAttack
from flwr_splitmix.attacks.knowledge import Knowledge


class Decoder(TrainedAttack):
    """Trains the papers' decoder on releases of public images.

    A mixture with unknown masks gives one image. Prefix tokens are not used.
    """

    name: ClassVar[str] = "decoder"
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 3e-3})
    source: ClassVar[str] = "DP-CutMixSL, section 6 and table 8; CutMixSL, table 3"

    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Make the decoder."""
        geometry = knowledge.geometry
        return ConvDecoder(width, geometry.patches, geometry.grid, knowledge.image_shape)


class ConvDecoder(nn.Module):
    """Tokens (b, prefix + N, d) as a map: convolution, ReLU, bilinear, convolution.

    Parameters
    ----------
    width
        d, or d + 1 with a mask as a further channel.
    patches, grid
        N, and their (rows, columns).
    hidden
        Channels between the two 3 x 3 convolutions.
    """

    def __init__(
        self,
        width: int,
        patches: int,
        grid: tuple[int, int] | None,
        image_shape: tuple[int, int, int],
        hidden: int = 64,
    ) -> None:
        super().__init__()
        self.patches = patches
        self.grid = grid_of(patches, grid)
        self.size = image_shape[1:]
        self.narrow = nn.Conv2d(width, hidden, 3, padding=1)
        self.paint = nn.Conv2d(hidden, image_shape[0], 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return images (b, C, H, W)."""
        maps = tokens[:, -self.patches :].mT.reshape(len(tokens), -1, *self.grid)
        wide = F.interpolate(F.relu(self.narrow(maps)), size=self.size, mode="bilinear")
        painted: Tensor = self.paint(wide)
        return painted
