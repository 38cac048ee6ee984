"""Cuts of timm's pooling vision transformers (pit_*) at the embedding or after a stage."""

from __future__ import annotations

from typing import Any

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
from flwr_splitmix.segments.vision.tokens import ClassifierHead, PatchEmbedding, Positions
from flwr_splitmix.segments.vision.zoo import create


class ConvPatches(nn.Module):
    """Convolution from images (b, c, height, width) to patches (b, N, d)."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        maps: Tensor = self.embed(images)
        return maps.flatten(2).transpose(1, 2)


class PrefixedMap(nn.Module):
    """Map from patches (b, N, d) to inputs of timm's stages: map (b, d, rows, columns), prefix."""

    def __init__(self, cls_token: Tensor, pos_drop: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(cls_token.detach().clone())
        self.pos_drop = pos_drop
        self.grid = grid

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        # The whole model's memory layout, on which dropout's draws depend.
        b, _, width = patches.shape
        maps = patches.transpose(1, 2).reshape(b, width, *self.grid).contiguous()
        return self.pos_drop(maps), self.tokens.expand(b, -1, -1)


class PairToTokens(nn.Module):
    """Map from a stage's (map, prefix tokens) to smashed data (b, prefix + N, d)."""

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
        # The strides of the whole model's map, so that convolutions round the same.
        maps = tokens[:, self.prefix :].transpose(1, 2).reshape(b, width, *self.grid)
        return maps, tokens[:, : self.prefix]


class PrefixOnly(nn.Module):
    """Selection of the prefix tokens, which the head classifies, from the last stage's pair."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # noqa: D102
        return pair[1]


def open_pit(request: Request) -> Cuttable:
    """Build a PiT; patches do not overlap unless the options set a `stride`.

    Raises
    ------
    ValueError
        If the patches do not tile the image, or timm's model does not embed them.
    """
    from timm.models.pit import PoolingVisionTransformer

    request.check_patches()
    stride = {} if "stride" in request.options else {"stride": request.patch_size}
    model = create(
        request, PoolingVisionTransformer,
        img_size=request.image_size, patch_size=request.patch_size, **stride,
    )  # fmt: skip
    rows, columns = model.patch_embed.grid_size
    check_embedding(request, ConvPatches(model.patch_embed), rows * columns)
    number_of_stages = len(model.transformers)
    grids, prefix = _grids(model), int(model.num_tokens)
    widths = [int(model.cls_token.shape[2]), *(_width(model, i) for i in range(number_of_stages))]
    stages = _take_apart(model, request.positions)
    above = len(stages) - 2 - number_of_stages  # stages below the first transformer stage

    def split(number: int) -> SplitModel:
        at_embedding = number == 1
        request.check_positions(at_embedding)
        passed = 0 if at_embedding else number - above
        geometry = Geometry(
            patches=grids[passed][0] * grids[passed][1],
            width=widths[passed],
            prefix=0 if at_embedding else prefix,
            grid=grids[passed],
            positions=request.positions,
        )
        lower, upper = list(stages[:number]), list(stages[number:])
        if not at_embedding:
            lower += [("tokens", PairToTokens())]
            upper = [("pair", TokensToPair(prefix, grids[passed])), *upper]
        return SplitModel(
            LowerSegment(lower, request.input_shape, geometry),
            UpperSegment(upper, geometry, request.num_classes),
        )

    cuts = {"embedding": 1}
    cuts |= {f"transformers.{i}": above + i + 1 for i in range(number_of_stages)}
    return Cuttable(request, stages, cuts, "embedding", split)


def _grids(model: Any) -> list[tuple[int, int]]:
    """Return (rows, columns) of the map after the embedding and after each stage."""
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


def _take_apart(model: Any, positions: str) -> list[Stage]:
    """Return the stages of a PiT, which cannot be used afterwards."""
    pos = model.pos_embed.flatten(2).transpose(1, 2)
    at_client = positions == "lower"
    embedding = PatchEmbedding(ConvPatches(model.patch_embed), pos if at_client else None)
    stages: list[Stage] = [
        ("embedding", embedding),
        *([] if at_client else [("positions", Positions(pos))]),
        ("prefix", PrefixedMap(model.cls_token, model.pos_drop, model.patch_embed.grid_size)),
        *((f"transformer_{i}", stage) for i, stage in enumerate(model.transformers)),
        ("prefix_only", PrefixOnly()),
    ]
    model.patch_embed = model.pos_drop = model.transformers = nn.Identity()
    model.pos_embed = model.cls_token = None
    return [*stages, ("head", ClassifierHead(model))]
