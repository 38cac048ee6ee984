"""Cutting timm's pooling vision transformers (pit_*) at the embedding or behind a stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.split_model import (
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)
from flwr_splitmix.segments.vision.tokens import ClassifierHead, PatchEmbedding, Positions
from flwr_splitmix.segments.vision.zoo import create


class ConvPatches(nn.Module):
    """The convolution that makes patches: images (b, c, height, width) to patches (b, N, d)."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        maps: Tensor = self.embed(images)
        return maps.flatten(2).transpose(1, 2)


class PrefixedMap(nn.Module):
    """Patches (b, N, d) to what timm's stages pass on: map (b, d, rows, columns), prefix tokens."""

    def __init__(self, cls_token: Tensor, pos_drop: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(cls_token.detach().clone())
        self.pos_drop = pos_drop
        self.grid = grid

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        # In the whole model's memory layout, in which dropout draws.
        b, _, width = patches.shape
        maps = patches.transpose(1, 2).reshape(b, width, *self.grid).contiguous()
        return self.pos_drop(maps), self.tokens.expand(b, -1, -1)


class PairToTokens(nn.Module):
    """A stage's (map, prefix tokens) to smashed data (b, prefix + N, d)."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # noqa: D102
        maps, prefix = pair
        return torch.cat([prefix, maps.flatten(2).transpose(1, 2)], dim=1)


class TokensToPair(nn.Module):
    """The inverse of `PairToTokens`."""

    def __init__(self, prefix: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.prefix = prefix
        self.grid = grid

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        b, _, width = tokens.shape
        # A view with the strides of the whole model's, on which convolutions round alike.
        maps = tokens[:, self.prefix :].transpose(1, 2).reshape(b, width, *self.grid)
        return maps, tokens[:, : self.prefix]


class PrefixOnly(nn.Module):
    """Of the last stage's (map, prefix tokens) the tokens, which the head classifies."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # noqa: D102
        return pair[1]


def split_pit(request: Request) -> SplitModel:
    """Build a PiT and cut it; patches do not overlap unless a `stride` is among the options."""
    from timm.models.pit import PoolingVisionTransformer

    request.check_patches()
    stride = {} if "stride" in request.options else {"stride": request.patch_size}
    model = create(
        request, PoolingVisionTransformer,
        img_size=request.image_size, patch_size=request.patch_size, **stride,
    )  # fmt: skip
    cuts = {"embedding": 0, **{f"transformers.{i}": i + 1 for i in range(len(model.transformers))}}
    number = request.choose(cuts, "embedding")
    request.check_positions(at_embedding=number == 0)
    grids = _grids(model)
    geometry = Geometry(
        patches=grids[number][0] * grids[number][1],
        width=int(model.cls_token.shape[2] if number == 0 else _width(model, number - 1)),
        prefix=0 if number == 0 else int(model.num_tokens),
        grid=grids[number],
        positions=request.positions,
    )
    lower, upper = _stages(model, number, grids[number], request.positions)
    return SplitModel(
        LowerSegment(lower, request.input_shape, geometry),
        UpperSegment(upper, geometry, request.num_classes),
    )


def _grids(model: Any) -> list[tuple[int, int]]:
    """Return (rows, columns) of the embedding and behind each stage, which may pool first."""
    rows, columns = model.patch_embed.grid_size
    grids = [(rows, columns)]
    for stage in model.transformers:
        if stage.pool is not None:
            rows, columns = (
                (size + 2 * pad - kernel) // stride + 1
                for size, pad, kernel, stride in zip(
                    (rows, columns),
                    stage.pool.conv.padding,
                    stage.pool.conv.kernel_size,
                    stage.pool.conv.stride,
                    strict=True,
                )
            )
        grids.append((rows, columns))
    return grids


def _width(model: Any, stage: int) -> int:
    return int(model.base_dims[stage] * model.heads[stage])


def _stages(
    model: Any, number: int, grid: tuple[int, int], positions: str
) -> tuple[list[Stage], list[Stage]]:
    """Take a PiT apart, `number` of its stages below the cut, where patches form `grid`."""
    pos = model.pos_embed.flatten(2).transpose(1, 2)
    at_client = positions == "lower"
    embedding = PatchEmbedding(ConvPatches(model.patch_embed), pos if at_client else None)
    stages = [(f"transformer_{i}", stage) for i, stage in enumerate(model.transformers)]
    prefixed = ("prefix", PrefixedMap(model.cls_token, model.pos_drop, model.patch_embed.grid_size))
    lower: list[Stage] = [("embedding", embedding)]
    upper: list[Stage] = []
    if number == 0:
        upper += [] if at_client else [("positions", Positions(pos))]
        upper += [prefixed]
    else:
        lower += [prefixed, *stages[:number], ("tokens", PairToTokens())]
        upper += [("pair", TokensToPair(int(model.num_tokens), grid))]
    model.patch_embed = model.pos_drop = model.transformers = nn.Identity()
    model.pos_embed = model.cls_token = None
    upper += [*stages[number:], ("prefix_only", PrefixOnly()), ("head", ClassifierHead(model))]
    return lower, upper
