"""Cutting timm vision transformers into a lower and an upper segment that equal the whole."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry


class LowerSegment(nn.Sequential):
    """The client's part of a vision model.

    Called with images (b, channels, height, width), returns smashed data
    (b, prefix + patches, width) as `geometry` says.
    """

    def __init__(
        self, stages: OrderedDict[str, nn.Module], input_shape: tuple[int, ...], geometry: Geometry
    ) -> None:
        super().__init__(stages)
        self.input_shape = input_shape
        self.geometry = geometry

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        if tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(
                f"images have shape {tuple(images.shape[1:])}, "
                f"the lower segment expects {self.input_shape} (channels, height, width)"
            )
        smashed: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return smashed


class UpperSegment(nn.Sequential):
    """The server's part: smashed data (b, prefix + patches, width) to logits (b, num_classes)."""

    def __init__(
        self, stages: OrderedDict[str, nn.Module], geometry: Geometry, num_classes: int
    ) -> None:
        super().__init__(stages)
        self.geometry = geometry
        self.num_classes = num_classes


class SplitModel(NamedTuple):
    """The two segments of one model."""

    lower: LowerSegment
    upper: UpperSegment


class PatchEmbedding(nn.Module):
    """Patch projection plus the position embeddings of the patches: each patch keeps its place."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.patch_embed = model.patch_embed
        pos: Tensor | None = model.pos_embed  # type: ignore[assignment]
        in_pos = 0 if model.no_embed_class else model.num_prefix_tokens
        self.pos_embed = None if pos is None else nn.Parameter(pos.detach()[:, in_pos:].clone())

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        tokens: Tensor = self.patch_embed(images)  # type: ignore[operator]
        return tokens if self.pos_embed is None else tokens + self.pos_embed


class PrefixTokens(nn.Module):
    """Class, register and distillation tokens, put in front of the patches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        parts = [
            token
            for name in ("cls_token", "dist_token", "reg_token")
            if (token := getattr(model, name, None)) is not None
        ]
        self.tokens = nn.Parameter(torch.cat([p.detach() for p in parts], 1)) if parts else None
        pos: Tensor | None = model.pos_embed  # type: ignore[assignment]
        shared = bool(parts) and pos is not None and not model.no_embed_class
        self.pos_embed = (
            nn.Parameter(pos.detach()[:, : model.num_prefix_tokens].clone())
            if shared and pos is not None
            else None
        )
        self.pos_drop = model.pos_drop
        self.norm_pre = model.norm_pre

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        tokens = patches
        if self.tokens is not None:
            prefix = self.tokens if self.pos_embed is None else self.tokens + self.pos_embed
            tokens = torch.cat([prefix.expand(len(patches), -1, -1), patches], dim=1)
        return self.norm_pre(self.pos_drop(tokens))  # type: ignore[operator, no-any-return]


class ClassifierHead(nn.Module):
    """Final norm, pooling and classifier, as the timm model has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.norm = model.norm
        model.norm = nn.Identity()
        self.model = model  # by now it holds nothing but the head

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        return self.model.forward_head(self.norm(tokens))  # type: ignore[operator, no-any-return]


def split_vision_model(
    name: str = "vit_tiny_patch16_224",
    *,
    cut_at: str = "embedding",
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 32,
    patch_size: int = 4,
    depth: int | None = 6,
    seed: int | None = None,
    **timm_options: Any,
) -> SplitModel:
    """Build a timm ViT or DeiT and cut it in two.

    Parameters
    ----------
    name
        A timm model of the `VisionTransformer` family.
    cut_at
        "embedding": the lower segment is the patch projection with the patches' position
        embeddings; the class token belongs to the upper segment. "blocks.i": the lower segment
        also holds the class token and blocks 0 to i.
    image_size, patch_size
        Pixels; the patch size must divide the image size.
    depth
        Number of blocks; None keeps the model's own. The default model is CutMixSL's ViT-Tiny.
    seed
        Seed of the initial weights; None draws from torch's default generator.
    **timm_options
        Handed to `timm.create_model` (drop_rate=0.1, pretrained=True, ...).

    Returns
    -------
    SplitModel
        (lower, upper); `upper(lower(x))` equals the whole model bit for bit.

    Raises
    ------
    ValueError
        If the model is unknown, is no vision transformer that can be cut, or has no such cut; the
        message lists what is possible.
    """
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return split_vision_model(
                name, cut_at=cut_at, num_classes=num_classes, channels=channels,
                image_size=image_size, patch_size=patch_size, depth=depth, **timm_options,
            )  # fmt: skip
    if image_size % patch_size:
        raise ValueError(f"patch_size {patch_size} does not divide image_size {image_size}")
    options: dict[str, Any] = {**timm_options, **({} if depth is None else {"depth": depth})}
    model = _create(
        name, num_classes=num_classes, in_chans=channels, img_size=image_size,
        patch_size=patch_size, **options,
    )  # fmt: skip
    return _cut(model, name, cut_at, (channels, image_size, image_size))


def _create(name: str, **options: Any) -> nn.Module:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    family: Any = VisionTransformer
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(["vit_*", "deit*"]), n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise ValueError(f"timm has no model {name!r}{hint} Allowed are timm's vit_* and deit*.")
    if not issubclass(_model_class(name), VisionTransformer):
        raise ValueError(_cannot_cut(name))
    model: nn.Module = timm.create_model(name, **options)
    if getattr(type(model), "forward_features", None) is not family.forward_features:
        raise ValueError(_cannot_cut(name))
    if getattr(model, "dynamic_img_size", False) or not isinstance(model.patch_drop, nn.Identity):
        raise ValueError(f"{name} drops or resizes patches itself; its patches cannot be masked")
    return model


def _model_class(name: str) -> type[nn.Module]:
    """Return the class that a timm entry point says it builds (its return annotation)."""
    import timm.models as zoo
    from timm.models import model_entrypoint

    entry = model_entrypoint(name)
    annotation = getattr(entry, "__annotations__", {}).get("return", nn.Module)
    found = getattr(zoo, annotation, None) if isinstance(annotation, str) else annotation
    return found if isinstance(found, type) else nn.Module


def _cannot_cut(name: str) -> str:
    return (
        f"{name} is not of timm's VisionTransformer family and cannot be cut; "
        "allowed are models such as vit_tiny_patch16_224, vit_small_patch16_224, "
        "deit_tiny_patch16_224, deit_tiny_distilled_patch16_224"
    )


def _cut(model: nn.Module, name: str, cut_at: str, input_shape: tuple[int, int, int]) -> SplitModel:
    blocks = list(model.blocks)  # type: ignore[arg-type]
    stages: list[tuple[str, nn.Module]] = [
        ("embedding", PatchEmbedding(model)),
        ("prefix", PrefixTokens(model)),
        *((f"block_{i}", block) for i, block in enumerate(blocks)),
    ]
    cuts = {"embedding": 1, **{f"blocks.{i}": 3 + i for i in range(len(blocks))}}
    if cut_at not in cuts:
        raise ValueError(f"{name} has no cut {cut_at!r}; allowed are {', '.join(cuts)}")
    at = cuts[cut_at]
    geometry = Geometry(
        patches=int(model.patch_embed.num_patches),  # type: ignore[union-attr, arg-type]
        width=int(model.embed_dim),  # type: ignore[arg-type]
        prefix=0 if at == 1 else int(model.num_prefix_tokens),  # type: ignore[arg-type]
    )
    num_classes = int(model.num_classes)  # type: ignore[arg-type]
    model.blocks = nn.ModuleList()
    model.patch_embed = model.pos_drop = model.norm_pre = nn.Identity()
    for token in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        if getattr(model, token, None) is not None:
            setattr(model, token, None)
    stages.append(("head", ClassifierHead(model)))
    return SplitModel(
        LowerSegment(OrderedDict(stages[:at]), input_shape, geometry),
        UpperSegment(OrderedDict(stages[at:]), geometry, num_classes),
    )
