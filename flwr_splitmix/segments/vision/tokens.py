"""Positions and prefix tokens of vision transformers, and their classifier."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Learned embeddings added to patches (b, N, d) by slot, whatever patch is in it."""

    def __init__(self, pos_embed: Tensor) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(pos_embed.detach().clone())

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        return patches + self.pos_embed


class PatchEmbedding(nn.Module):
    """Patch projection plus, if given, the position embeddings of the patches."""

    def __init__(self, patch_embed: nn.Module, pos_embed: Tensor | None) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.pos_embed = None if pos_embed is None else nn.Parameter(pos_embed.detach().clone())

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        tokens: Tensor = self.patch_embed(images)
        return tokens if self.pos_embed is None else tokens + self.pos_embed


def shares_no_positions(model: Any) -> bool:
    """Return whether a timm ViT has position embeddings for its patches only."""
    return bool(getattr(model, "no_embed_class", False))


class PrefixTokens(nn.Module):
    """Class, distillation and register tokens of a timm ViT, put in front of the patches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        parts = [
            token
            for name in ("cls_token", "dist_token", "reg_token")
            if (token := getattr(model, name, None)) is not None
        ]
        self.tokens = nn.Parameter(torch.cat([p.detach() for p in parts], 1)) if parts else None
        pos: Tensor | None = model.pos_embed
        shared = bool(parts) and pos is not None and not shares_no_positions(model)
        self.pos_embed = (
            nn.Parameter(pos.detach()[:, : model.num_prefix_tokens].clone())
            if shared and pos is not None
            else None
        )
        self.pos_drop = model.pos_drop
        self.norm_pre = getattr(model, "norm_pre", nn.Identity())

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        tokens = patches
        if self.tokens is not None:
            prefix = self.tokens if self.pos_embed is None else self.tokens + self.pos_embed
            # shape[0], not len(): exporters keep it variable.
            tokens = torch.cat([prefix.expand(patches.shape[0], -1, -1), patches], dim=1)
        return self.norm_pre(self.pos_drop(tokens))  # type: ignore[no-any-return]


class RotaryBlock(nn.Module):
    """A block whose attention rotates queries and keys by the patches' positions.

    The angles follow from the grid of patches: they are not weights, and not in the state.
    """

    def __init__(self, block: nn.Module, angles: Tensor) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("angles", angles.detach().clone(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        moved: Tensor = self.block(tokens, rope=self.angles)
        return moved


class OwnRotaryBlock(nn.Module):
    """A block that learns its own frequencies of rotation, a part of timm's mixed rotary positions.

    Parameters
    ----------
    rotary
        timm's `RotaryEmbeddingMixed`, whose frequencies are (2, depth, heads, width).
    index
        Number of the block.
    """

    def __init__(self, block: nn.Module, rotary: Any, index: int) -> None:
        super().__init__()
        self.block = block
        self.rope = copy.deepcopy(rotary)
        self.rope.freqs = nn.Parameter(rotary.freqs.detach()[:, index : index + 1].clone())
        self.rope.depth = 1

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        moved: Tensor = self.block(tokens, rope=self.rope.get_embed()[0])
        return moved


class ClassifierHead(nn.Module):
    """Final norm, pooling and classifier of a timm model.

    The caller must have removed all other weights from the model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm = model.norm
        model.norm = nn.Identity()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        return self.model.forward_head(self.norm(tokens))  # type: ignore[no-any-return]
