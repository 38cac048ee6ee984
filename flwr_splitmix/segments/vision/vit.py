"""Cuts of timm's VisionTransformer family (vit_*, deit*) at the embedding or after a block."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.split_model import (
    Cuttable,
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)
from flwr_splitmix.segments.vision.tokens import (
    ClassifierHead,
    PatchEmbedding,
    Positions,
    PrefixTokens,
)
from flwr_splitmix.segments.vision.zoo import create


def build_vit(request: Request) -> Any:
    """Build a timm ViT whose patches can be masked.

    Raises
    ------
    ValueError
        If the patches do not tile the image, the model drops or resizes patches itself, or
        pretrained weights are asked for another depth than the model's own.
    """
    from timm.models.vision_transformer import VisionTransformer

    request.check_patches()
    depth = {} if request.depth is None else {"depth": request.depth}
    if depth and request.options.get("pretrained"):
        raise ValueError(
            f"depth is {request.depth}, but pretrained weights are those of the model's own depth: "
            "pass depth=None"
        )
    model = create(
        request, VisionTransformer,
        img_size=request.image_size, patch_size=request.patch_size, **depth,
    )  # fmt: skip
    if getattr(model, "dynamic_img_size", False) or not isinstance(model.patch_drop, nn.Identity):
        raise ValueError(
            f"{request.name} drops or resizes patches itself; its patches cannot be masked"
        )
    return model


def take_vit_apart(model: Any, positions: str) -> tuple[list[Stage], Tensor | None]:
    """Return the stages of a timm ViT and its patches' position embeddings.

    The model cannot be used afterwards. The embeddings (1, N, d) belong to the first stage if
    `positions` is "lower", else to their own stage after it; None if the model has none.
    """
    pos: Tensor | None = model.pos_embed
    if pos is not None:
        pos = pos.detach()[:, 0 if model.no_embed_class else model.num_prefix_tokens :]
    below = pos if positions == "lower" else None
    above: list[Stage] = [("positions", Positions(pos))] if pos is not None else []
    stages: list[Stage] = [
        ("embedding", PatchEmbedding(model.patch_embed, below)),
        *(above if positions == "upper" else []),
        ("prefix", PrefixTokens(model)),
        *((f"block_{i}", block) for i, block in enumerate(model.blocks)),
    ]
    model.blocks = nn.ModuleList()
    model.patch_embed = model.pos_drop = model.norm_pre = nn.Identity()
    for token in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        if getattr(model, token, None) is not None:
            setattr(model, token, None)
    return [*stages, ("head", ClassifierHead(model))], pos


def open_vit(request: Request) -> Cuttable:
    """Build a model of timm's VisionTransformer family; see `split_vision_model`."""
    model = build_vit(request)
    cuts = {"embedding": 1, **{f"blocks.{i}": 3 + i for i in range(len(model.blocks))}}
    rows, columns = model.patch_embed.grid_size
    patches, width, prefix = rows * columns, int(model.embed_dim), int(model.num_prefix_tokens)
    stages, pos = take_vit_apart(model, request.positions)

    def split(at: int) -> SplitModel:
        request.check_positions(at_embedding=at == 1)
        geometry = Geometry(
            patches=patches,
            width=width,
            prefix=0 if at == 1 else prefix,
            grid=(rows, columns),
            positions="none" if pos is None else request.positions,
        )
        return SplitModel(
            LowerSegment(stages[:at], request.input_shape, geometry),
            UpperSegment(stages[at:], geometry, request.num_classes),
        )

    return Cuttable(request, stages, cuts, "embedding", split)
