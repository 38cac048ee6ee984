"""Cuts of plain vision transformers (vit_*, deit*, eva*, beit*) at the embedding or a block."""

from __future__ import annotations

from typing import Any, Literal

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
from flwr_splitmix.segments.vision.tokens import (
    ClassifierHead,
    OwnRotaryBlock,
    PatchEmbedding,
    Positions,
    PrefixTokens,
    RotaryBlock,
    shares_no_positions,
)
from flwr_splitmix.segments.vision.zoo import cannot_cut, create, family_of


def plain_transformer(family: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class of timm that defines a plain transformer's forward pass; else None.

    Plain transformers are an embedding of patches, prefix tokens, blocks of one width and a head.
    """
    from timm.models.beit import Beit
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    return next((kind for kind in (VisionTransformer, Eva, Beit) if issubclass(family, kind)), None)


def build_vit(request: Request) -> Any:
    """Build a plain transformer of timm whose patches can be masked.

    Raises
    ------
    ValueError
        If the patches do not tile the image, or the map of a hybrid's backbone, the model drops or
        resizes patches itself, its blocks share weights of positions or move positions at random,
        or pretrained weights are asked for another depth than the model's own.
    """
    family = plain_transformer(family_of(request.name))
    if family is None:
        raise ValueError(cannot_cut(request.name, "it is not a plain transformer"))
    request.check_patches()
    model = create(
        request, family,
        img_size=request.image_size, patch_size=request.patch_size,
        **request.depth_option(), **_of_one_size(family, request),
    )  # fmt: skip
    _check_can_be_cut(request, model)
    check_embedding(request, model.patch_embed, int(model.patch_embed.num_patches))
    return model


def _of_one_size(family: type[nn.Module], request: Request) -> dict[str, bool]:
    """Return options without which some models accept images of any size.

    Only Eva and timm's VisionTransformer have the option.
    """
    takes = family.__name__ in ("Eva", "VisionTransformer")
    fixed = takes and "dynamic_img_size" not in request.options
    return {"dynamic_img_size": False} if fixed else {}


def _check_can_be_cut(request: Request, model: Any) -> None:
    """Raise ValueError if a model's patches cannot be masked, or its blocks share positions."""
    causes = {
        "dynamic_img_size": getattr(model, "dynamic_img_size", False),
        "patch_drop_rate": not isinstance(getattr(model, "patch_drop", None), nn.Identity | None),
    }
    if chosen := [option for option, is_on in causes.items() if is_on]:
        raise ValueError(
            f"{request.name} drops or resizes patches itself, so its patches cannot be masked: "
            f"leave out {' and '.join(chosen)}"
        )
    rotary = getattr(model, "rope", None)
    moved = [f"{name}_coords" for name in ("shift", "jitter", "rescale")]
    if any(getattr(rotary, name, None) is not None for name in moved):
        raise ValueError(
            f"{request.name} moves its patches' positions at random, and two segments cannot draw "
            f"alike: leave out {', '.join(f'rope_{name}' for name in moved)}"
        )
    biases = getattr(model, "rel_pos_bias", None)
    if biases is not None and any(True for _ in biases.parameters()):
        raise ValueError(
            f"{request.name} cannot be cut: its blocks share trainable positions, which would be "
            "in both segments"
        )


def _blocks(model: Any) -> list[nn.Module]:
    rotary = getattr(model, "rope", None)
    if rotary is None:
        return list(model.blocks)
    if getattr(model, "rope_mixed", False):
        return [OwnRotaryBlock(block, rotary, i) for i, block in enumerate(model.blocks)]
    options = {} if hasattr(rotary, "feat_shape") else {"shape": model.patch_embed.grid_size}
    angles = rotary.get_embed(**options)
    return [RotaryBlock(block, angles) for block in model.blocks]


def _blocks_know_places(model: Any) -> bool:
    """Return whether attention depends on the patches' places: by rotations or biases."""
    biases = ("relative_position_bias_table", "rel_pos_bias")
    return getattr(model, "rope", None) is not None or any(
        bias in name for name, _ in model.named_parameters() for bias in biases
    )


def take_vit_apart(model: Any, positions: str) -> tuple[list[Stage], Tensor | None]:
    """Return the stages of a plain transformer and its patches' position embeddings.

    The model cannot be used afterwards. The embeddings (1, N, d) belong to the first stage if
    `positions` is "lower", else to their own stage after it; None if the model has none.
    """
    pos: Tensor | None = model.pos_embed
    if pos is not None:
        pos = pos.detach()[:, 0 if shares_no_positions(model) else model.num_prefix_tokens :]
    below = pos if positions == "lower" else None
    above: list[Stage] = [("positions", Positions(pos))] if pos is not None else []
    stages: list[Stage] = [
        ("embedding", PatchEmbedding(model.patch_embed, below)),
        *(above if positions == "upper" else []),
        ("prefix", PrefixTokens(model)),
        *((f"block_{i}", block) for i, block in enumerate(_blocks(model))),
    ]
    model.blocks = nn.ModuleList()
    model.patch_embed = model.pos_drop = model.norm_pre = nn.Identity()
    model.rope = None
    for token in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        if getattr(model, token, None) is not None:
            setattr(model, token, None)
    return [*stages, ("head", ClassifierHead(model))], pos


def open_vit(request: Request) -> Cuttable:
    """Build a plain transformer; see `split_vision_model`."""
    model = build_vit(request)
    cuts = {"embedding": 1, **{f"blocks.{i}": 3 + i for i in range(len(model.blocks))}}
    rows, columns = model.patch_embed.grid_size
    patches, width, prefix = rows * columns, int(model.embed_dim), int(model.num_prefix_tokens)
    within = _blocks_know_places(model)
    stages, pos = take_vit_apart(model, request.positions)

    def split(at: int) -> SplitModel:
        request.check_positions(at_embedding=at == 1)
        below: Literal["lower", "none"] = "lower" if within else "none"
        geometry = Geometry(
            patches=patches,
            width=width,
            prefix=0 if at == 1 else prefix,
            grid=(rows, columns),
            positions=request.positions if pos is not None else below if at > 1 else "none",
        )
        return SplitModel(
            LowerSegment(stages[:at], request.input_shape, geometry),
            UpperSegment(stages[at:], geometry, request.num_classes),
        )

    return Cuttable(request, stages, cuts, "embedding", split)
