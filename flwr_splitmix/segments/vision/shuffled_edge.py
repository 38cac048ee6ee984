"""Frozen lower segments that shuffle patches (PS, BS, PS+), cut from a timm ViT."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.feature_maps import CellsToMap, MapToCells
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle
from flwr_splitmix.segments.vision.split_model import (
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)
from flwr_splitmix.segments.vision.tokens_to_token import TokensToToken
from flwr_splitmix.segments.vision.vit import build_vit, take_vit_apart
from flwr_splitmix.segments.vision.zoo import family_of

ShuffleMethod = Literal["patch", "batch", "spectral", "spectral-pixels"]
Embedding = Literal["patch", "tokens-to-token"]


class FrozenLower(LowerSegment):
    """Lower segment that is never trained: it has no gradients, and never any dropout.

    Only the shuffle follows the training mode. `edge` describes the segment: {"method", "kappa"},
    and "embedding" if that is not "patch".
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        input_shape: tuple[int, ...],
        geometry: Geometry,
        edge: dict[str, Any],
    ) -> None:
        super().__init__(stages, input_shape, geometry)
        self.edge = edge
        self.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:  # noqa: D102
        super().train(False)
        self.training = mode
        for module in self.children():
            if isinstance(module, PatchShuffle):
                module.train(mode)
        return self


class ShuffledUpper(UpperSegment):
    """Upper segment for unordered patches; `edge` describes the clients' shuffle."""

    def __init__(
        self,
        stages: Sequence[Stage],
        geometry: Geometry,
        num_classes: int,
        edge: dict[str, Any],
    ) -> None:
        super().__init__(stages, geometry, num_classes)
        self.edge = edge


class Spectrum(nn.Module):
    """Map from images or maps (b, C, height, width) to their spectra (b, 2 C, height, width).

    The transform is unitary, with frequency 0 in the middle; the first C channels are the real
    parts, the others the imaginary parts. As images are real, patches of opposite frequencies hold
    nearly the same numbers, up to signs, and a server can recognise such pairs.

    Source: Patch Shuffling, section IV-D.
    """

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        spectra = torch.fft.fftshift(torch.fft.fft2(images, norm="ortho"), dim=(-2, -1))
        return torch.cat([spectra.real, spectra.imag], dim=1)


def split_shuffled_edge(
    name: str = "vit_tiny_patch16_224",
    *,
    method: ShuffleMethod,
    kappa: float = 1.0,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 32,
    patch_size: int = 4,
    depth: int | None = 6,
    seed: int | None = None,
    embedding: Embedding = "patch",
    **timm_options: Any,
) -> SplitModel:
    """Cut a timm ViT or DeiT for shuffled patches; the lower segment is frozen.

    Neither segment has position embeddings, not even for the class token.

    Parameters
    ----------
    name
        A timm model of the `VisionTransformer` family.
    method
        "patch" (PS): patch projection, shuffle within each image, the model's first block; the
        upper segment is class token, other blocks and head. "batch" (BS): likewise, with patches
        exchanged within the batch. "spectral" (PS+): patch projection, whose patches are
        reassembled to a map (`side_of_patches`), and a shuffle of patches of the map's spectrum,
        of twice the model's width; the upper segment has a two-layer MLP before all blocks.
        "spectral-pixels", as the paper's Figure 4 shows: patches of the image's own spectrum, of
        width 2 channels patch_size², with no weights in the lower segment.
    kappa
        For "batch": the fraction of its patches that an image keeps, in (0, 1].
    num_classes, channels, image_size, patch_size, depth, seed, **timm_options
        As for `split_vision_model`. All clients and the server need the same lower weights: the
        same seed, or pretrained ones.
    embedding
        "patch": the model's own patch projection. "tokens-to-token", for "patch" and "batch", as
        in the paper: a `TokensToToken` in its place, with random weights, as timm has none; a
        seed's other weights are those that it has with "patch".

    Returns
    -------
    SplitModel
        (lower, upper), each with an attribute `edge`, {"method": method, "kappa": kappa}, and
        "embedding" if that is not "patch".

    Raises
    ------
    ValueError
        If the model is no such transformer, has too few blocks for "patch" or "batch", or has a
        norm before its first block; if method, kappa, embedding or a size is invalid; or if
        "tokens-to-token" is asked of a spectral method, of pretrained weights, or with patches of
        another size than 4, 8 or 16.

    Source: Patch Shuffling, sections IV and V-A.
    """
    shuffle = _shuffle(method, kappa)
    _check_embedding(embedding, method, bool(timm_options.get("pretrained")))
    _check_family(name)
    request = Request(
        name, None, num_classes, channels, image_size, patch_size, depth, "lower", 1, timm_options
    )
    seeded = contextlib.nullcontext() if seed is None else seeded_draws(torch.device("cpu"), seed)
    with seeded:
        model = build_vit(request)
        width, patches = int(model.embed_dim), int(model.patch_embed.num_patches)
        rows, columns = model.patch_embed.grid_size  # before the model is taken apart
        first, *others = _stages_without_positions(model)
        if method in ("spectral", "spectral-pixels"):
            side, crossing = patch_size, 2 * channels * patch_size**2
            before: list[Stage] = []
            if method == "spectral":
                side, crossing = side_of_patches(width, patch_size), 2 * width
                before = [first, ("map", CellsToMap((rows, columns), side))]
            lower: list[Stage] = [
                *before, ("spectrum", Spectrum()), ("patches", MapToCells(side)),
                ("shuffle", shuffle),
            ]  # fmt: skip
            upper = [("embedding", _mlp(crossing, width)), *others]
        else:
            crossing = width
            if embedding == "tokens-to-token":  # drawn last: other weights stay a seed's own
                first = ("embedding", TokensToToken(channels, width, patch_size))
                patches = (image_size // patch_size) ** 2
            lower = [first, ("shuffle", shuffle), *_first_block(name, others)]
            upper = [stage for stage in others if stage not in lower]
    geometry = Geometry(patches, crossing, positions="none")
    edge: dict[str, Any] = {"method": method, "kappa": float(kappa)}
    if embedding != "patch":
        edge["embedding"] = embedding
    return SplitModel(
        FrozenLower(lower, request.input_shape, geometry, dict(edge)),
        ShuffledUpper(upper, geometry, num_classes, dict(edge)),
    )


def side_of_patches(width: int, patch_size: int) -> int:
    """Return the side of the square that a patch's embedding of a given width fills in the map.

    It is the largest up to `patch_size` whose square divides the width; the quotient is the number
    of channels. At width 768 and patches of 16 pixels, the map has the image's size and 3 channels,
    as in the paper's public code; at 192 and 4, the image's size and 12 channels; at 384 and 16,
    half the image's size and 6 channels.
    """
    return max(side for side in range(1, patch_size + 1) if width % side**2 == 0)


def _shuffle(method: str, kappa: float) -> PatchShuffle:
    allowed = get_args(ShuffleMethod)
    if method not in allowed:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(map(repr, allowed))}")
    if method != "batch" and kappa != 1:
        raise ValueError(
            f"kappa {kappa} is for the method 'batch' only; {method!r} exchanges no patches"
        )
    return PatchShuffle(kappa)


def _check_embedding(embedding: str, method: str, pretrained: bool) -> None:
    allowed = get_args(Embedding)
    if embedding not in allowed:
        raise ValueError(
            f"embedding is {embedding!r}; it must be one of {', '.join(map(repr, allowed))}"
        )
    if embedding == "patch":
        return
    if method not in ("patch", "batch"):
        raise ValueError(
            f"embedding {embedding!r} is for the methods 'patch' and 'batch' only; {method!r} has "
            "ViT's patch embedding, as in the paper (section V-A), or none"
        )
    if pretrained:
        raise ValueError(
            f"embedding {embedding!r} has no pretrained weights in timm; allowed with pretrained "
            "is 'patch'"
        )


def _check_family(name: str) -> None:
    from timm.models.vision_transformer import VisionTransformer

    family = None if name == "lenet5" else family_of(name)
    if family is None or not issubclass(family, VisionTransformer):
        class_note = "" if family is None else f"; this one's class is {family.__name__}"
        raise ValueError(
            f"the patches of {name} cannot be shuffled; use a model of timm's class "
            f"VisionTransformer, such as vit_tiny_patch16_224 or deit_tiny_patch16_224{class_note}"
        )


def _stages_without_positions(model: Any) -> list[Stage]:
    model.pos_embed = None
    stages, _ = take_vit_apart(model, "lower")
    return stages


def _first_block(name: str, stages: Sequence[Stage]) -> list[Stage]:
    blocks = [stage for stage in stages if stage[0].startswith("block_")]
    if len(blocks) < 2:
        raise ValueError(
            f"depth {len(blocks)} of {name} is not enough: one block is frozen at the edge and "
            "at least one must learn"
        )
    prefix = dict(stages)["prefix"]
    if not isinstance(prefix.norm_pre, nn.Identity):
        raise ValueError(
            f"{name} normalises its tokens before the first block, behind the cut; use a "
            "model that does not, such as vit_tiny_patch16_224"
        )
    return blocks[:1]


def _mlp(patch: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(patch, width), nn.GELU(), nn.Linear(width, width))
