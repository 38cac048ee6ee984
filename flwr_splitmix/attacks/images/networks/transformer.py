"""Transformers over tokens, with their own position embeddings, that attacks train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Scale
from flwr_splitmix.attacks.images.embedding.patches import grid_of, patch_size, to_images
from flwr_splitmix.attacks.knowledge import Knowledge

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"model": 64, "blocks": 1, "heads": 4},
    "cpu": {"model": 128, "blocks": 2, "heads": 4},
    "paper": {"model": 512, "blocks": 8, "heads": 16},
}
"""By scale; "paper" is the size of an MAE decoder, as in Patch Shuffling."""


class TokenTransformer(nn.Module):
    """A transformer over tokens (b, prefix + N, d).

    Parameters
    ----------
    width
        d, or d + 1 with a mask as a further input.
    outputs
        Number of outputs for each of the N patch tokens.
    model, blocks, heads
        Width, depth and attention heads.
    positions
        Whether to distinguish slots; if not, the tokens are a set.
    """

    def __init__(
        self,
        width: int,
        patches: int,
        prefix: int,
        outputs: int,
        *,
        model: int,
        blocks: int,
        heads: int,
        positions: bool = True,
    ) -> None:
        super().__init__()
        self.patches = patches
        self.enter = nn.Linear(width, model)
        slots = 0.02 * torch.randn(1, prefix + patches, model)
        self.positions = nn.Parameter(slots) if positions else None
        self.blocks = nn.Sequential(*(_block(model, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(model)
        self.leave = nn.Linear(model, outputs)
        # A token's information about its own patch need not pass the blocks.
        self.shortcut = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (b, N, outputs)."""
        inner = self.enter(tokens)
        if self.positions is not None:
            inner = inner + self.positions
        result: Tensor = self.leave(self.norm(self.blocks(inner))) + self.shortcut(tokens)
        return result[:, -self.patches :]


class TransformerDecoder(nn.Module):
    """Tokens (b, prefix + N, d) to `images` images each.

    Parameters
    ----------
    width, patches, prefix, model, blocks, heads
        See `TokenTransformer`.
    grid
        (rows, columns) of the patches; None for a square.
    """

    def __init__(
        self,
        width: int,
        patches: int,
        prefix: int,
        grid: tuple[int, int] | None,
        image_shape: tuple[int, int, int],
        *,
        images: int = 1,
        model: int,
        blocks: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.images = images
        self.grid = grid_of(patches, grid)
        self.image_shape = image_shape
        h, w = patch_size(image_shape, self.grid)
        self.pixels = image_shape[0] * h * w
        self.body = TokenTransformer(
            width, patches, prefix, images * self.pixels, model=model, blocks=blocks, heads=heads
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return images (b, C, H, W), or (b, images, C, H, W) if there are several."""
        pixels = self.body(tokens).unflatten(2, (self.images, self.pixels)).transpose(1, 2)
        painted = to_images(pixels, self.grid, self.image_shape)
        return painted if self.images > 1 else painted[:, 0]


def decoder_of(
    knowledge: Knowledge, width: int, scale: Scale, *, images: int = 1
) -> TransformerDecoder:
    """Make a decoder for the smashed data that an attacker knows of.

    Parameters
    ----------
    width
        d, or d + 1 with a mask as a further input.
    scale
        The attack's effort; `SIZES` has the decoder's size.
    images
        Number of images that each row of tokens becomes.
    """
    geometry = knowledge.geometry
    return TransformerDecoder(
        width, geometry.patches, geometry.prefix, geometry.grid, knowledge.image_shape,
        images=images, **SIZES[scale],
    )  # fmt: skip


def _block(model: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(
        model, heads, 2 * model, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
