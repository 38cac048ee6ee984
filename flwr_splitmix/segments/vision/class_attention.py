"""Cuts of transformers whose class token joins the patches after the blocks (cait_*, xcit_*)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.black_image import check_embedding
from flwr_splitmix.segments.vision.split_model import (
    Cuttable,
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)
from flwr_splitmix.segments.vision.tokens import ClassifierHead, Positions
from flwr_splitmix.segments.vision.zoo import create

XCIT_PATCHES = (8, 16)
"""Sides in pixels of the patches for which timm's XCiT has convolutions."""


def class_attention(family: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class of timm that defines such a model's forward pass; else None."""
    from timm.models.cait import Cait
    from timm.models.xcit import Xcit

    return next((kind for kind in (Cait, Xcit) if issubclass(family, kind)), None)


class FirstOfPair(nn.Module):
    """An embedding of timm that returns tokens and their grid; this keeps the tokens."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        tokens: Tensor = self.embed(images)[0]
        return tokens


class FourierPositions(nn.Module):
    """XCiT's learned projection of sines and cosines, added to patches (b, N, d) by slot."""

    def __init__(self, encoding: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.encoding = encoding
        self.grid = grid

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        b, n, _ = patches.shape
        positions: Tensor = self.encoding(b, *self.grid)
        return patches + positions.reshape(b, -1, n).permute(0, 2, 1)


class GridBlock(nn.Module):
    """A block of XCiT, which needs the grid of its patches."""

    def __init__(self, block: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.block = block
        self.grid = grid

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        attended: Tensor = self.block(patches, *self.grid)
        return attended


class ClassAttentionHead(ClassifierHead):
    """Class token, the blocks in which it attends to the patches, final norm and classifier."""

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        # timm has `forward_cls` for this only from 1.0.31 on.
        token = self.model.cls_token.expand(len(patches), -1, -1)
        if hasattr(self.model, "cls_attn_blocks"):  # XCiT's also change the patches
            tokens = torch.cat((token, patches), dim=1)
            for block in self.model.cls_attn_blocks:
                tokens = block(tokens)
        else:
            for block in self.model.blocks_token_only:
                token = block(patches, token)
            tokens = torch.cat((token, patches), dim=1)
        return super().forward(tokens)


def open_class_attention(request: Request, family: type[nn.Module]) -> Cuttable:
    """Build a CaiT or an XCiT; no cut has a prefix, as the class token is in the upper segment.

    Raises
    ------
    ValueError
        If the patches do not tile the image, timm has no such patches, or pretrained weights are
        asked for another depth than the model's own.
    """
    request.check_patches()
    xcit = family.__name__ == "Xcit"
    if xcit and request.patch_size not in XCIT_PATCHES:
        raise ValueError(
            f"{request.name} has patches of 8 or 16 pixels; patch_size is {request.patch_size}"
        )
    model = create(
        request, family,
        img_size=request.image_size, patch_size=request.patch_size, **request.depth_option(),
    )  # fmt: skip
    side = request.image_size // request.patch_size
    grid, width, added = (side, side), int(model.embed_dim), model.pos_embed is not None
    embed = FirstOfPair(model.patch_embed) if xcit else model.patch_embed
    check_embedding(request, embed, side**2)
    cuts = {"embedding": 1, **{f"blocks.{i}": 3 + i for i in range(len(model.blocks))}}
    stages = _take_apart(model, request.positions, grid if xcit else None)

    def split(at: int) -> SplitModel:
        request.check_positions(at_embedding=at == 1)
        # XCiT's blocks convolve over the grid; those of CaiT do not know it.
        below: Literal["lower", "none"] = "lower" if xcit and at > 1 else "none"
        geometry = Geometry(
            side**2, width, grid=grid, positions=request.positions if added else below
        )
        return SplitModel(
            LowerSegment(stages[:at], request.input_shape, geometry),
            UpperSegment(stages[at:], geometry, request.num_classes),
        )

    return Cuttable(request, stages, cuts, "embedding", split)


def _take_apart(model: Any, positions: str, grid: tuple[int, int] | None) -> list[Stage]:
    """Return the stages of a model, which cannot be used afterwards; with a grid, of an XCiT."""
    added: nn.Module | None = None
    if model.pos_embed is not None:
        added = (
            Positions(model.pos_embed) if grid is None else FourierPositions(model.pos_embed, grid)
        )
    embed = model.patch_embed if grid is None else FirstOfPair(model.patch_embed)
    embedding = [("embed", embed), *([("positions", added)] if added is not None else [])]
    stages: list[Stage] = [
        (
            "embedding",
            nn.Sequential(OrderedDict(embedding if positions == "lower" else embedding[:1])),
        ),
        *(embedding[1:] if positions == "upper" else []),
        ("dropout", model.pos_drop),
        *(
            (f"block_{i}", block if grid is None else GridBlock(block, grid))
            for i, block in enumerate(model.blocks)
        ),
    ]
    model.blocks = nn.ModuleList()
    model.patch_embed = model.pos_drop = nn.Identity()
    model.pos_embed = None
    return [*stages, ("head", ClassAttentionHead(model))]
