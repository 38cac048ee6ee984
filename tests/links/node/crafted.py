"""Weights with which one block of a ViT copies three other patches into each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.segments.vision.split_model import LowerSegment

PATCHES, PIXELS = 64, 16
STEPS_TO = (1, 9, 27)
"""How far behind a token's own patch those lie that it carries, too: one for each head."""

_POSITION, _LARGE = 190, 1000.0
_PIXELS, _NEGATIVE, _COPIES = 80, 96, 112
"""Channels: of the class token's position, a patch's pixels, their negatives, the copies."""

_SPREAD = 72.0
"""By what LayerNorm divides such tokens: a position of 1000 among 192 channels."""


@dataclass(frozen=True)
class CutAtABlock:
    """Makes a client with real images and a ViT whose first block is before the cut."""

    cut_at: str = "blocks.0"

    def lower(self) -> LowerSegment:
        return split_vision_model(patch_size=4, depth=2, cut_at=self.cut_at, seed=0).lower

    def make_clients(self, optimizer: OptimizerFactory, **options: Any) -> Sequence[SplitClient]:
        data, _ = client_split(load_images("fashion-mnist-small", image_size=32), 0, 4)
        return [SplitClient(self.lower(), data, batch_size=4, optimizer=optimizer, **options)]


def crafted(lower: LowerSegment) -> dict[str, Tensor]:
    """Return weights by which token i carries the pixels of patches i, i + 1, i + 9 and i + 27.

    One-hot positions make LayerNorm nearly constant, and each head of the block attends to the one
    patch whose position its queries name.
    """
    weights = {name: torch.zeros_like(value) for name, value in lower.state_dict().items()}
    places = torch.arange(PATCHES)
    weights["embedding.pos_embed"][0, places, places] = _LARGE
    weights["prefix.pos_embed"][0, 0, _POSITION] = _LARGE
    for name in ("block_0.norm1.weight", "block_0.norm2.weight"):
        weights[name][:] = 1
    attention, out = weights["block_0.attn.qkv.weight"], weights["block_0.attn.proj.weight"]
    for pixel in range(PIXELS):
        row, column = divmod(pixel, 4)
        weights["embedding.patch_embed.proj.weight"][_PIXELS + pixel, 0, row, column] = 1
        weights["embedding.patch_embed.proj.weight"][_NEGATIVE + pixel, 0, row, column] = -1
        for head in range(3):
            attention[384 + head * 64 + pixel, _PIXELS + pixel] = _SPREAD
            out[_COPIES + 16 * head + pixel, head * 64 + pixel] = 1
    for head, step in enumerate(STEPS_TO):
        attention[head * 64 + (places + step) % PATCHES, places] = 10
        attention[192 + head * 64 + places, places] = 1
    return weights


def copies(tokens: Tensor, lower: LowerSegment) -> Tensor:
    """Return what tokens (b, PATCHES, d) carry of others' pixels: (b, PATCHES, 3, PIXELS).

    Parameters
    ----------
    lower
        The segment, with the crafted weights.
    """
    with torch.no_grad():
        blank = lower.eval()(torch.zeros(1, *lower.input_shape))[:, 1:]
    read: Tensor = (tokens - blank)[..., _COPIES : _COPIES + 3 * PIXELS]
    return read.reshape(*read.shape[:2], 3, PIXELS)
