"""Cuts of vision models into two or three parts that together equal the whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch

from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.vision.class_attention import class_attention, open_class_attention
from flwr_splitmix.segments.vision.layouts import layout_of
from flwr_splitmix.segments.vision.lenet import open_lenet5
from flwr_splitmix.segments.vision.pit import open_pit
from flwr_splitmix.segments.vision.split_model import (
    Cuttable,
    Request,
    SplitModel,
    VisionParts,
)
from flwr_splitmix.segments.vision.staged import open_staged
from flwr_splitmix.segments.vision.vgg import open_vgg
from flwr_splitmix.segments.vision.vit import open_vit, plain_transformer
from flwr_splitmix.segments.vision.zoo import cannot_cut, family_of


def split_vision_model(
    name: str = "vit_tiny_patch16_224",
    *,
    cut_at: str | None = None,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 32,
    patch_size: int = 4,
    depth: int | None = 6,
    seed: int | None = None,
    positions: Literal["lower", "upper"] = "lower",
    cell: int = 2,
    **timm_options: Any,
) -> SplitModel:
    """Build a vision model and cut it in two.

    Parameters
    ----------
    name
        A timm model of the classes `VisionTransformer` (vit_*, deit*), `Eva` (eva*, vit_*_dinov3,
        ...), `Beit`, `Cait`, `Xcit`, `PoolingVisionTransformer` (pit_*), `VGG`, or of `LAYOUTS`:
        `ResNet`, `EfficientNet` (also mobilenetv2_*), `ConvNeXt`, `DenseNet`, `ByobNet`
        (mobilevit_*, repvgg_*, ...), `MlpMixer`, `SwinTransformer` and many others; or "lenet5".
    cut_at
        The last part of the lower segment; None or "" for the family's default:

        - ViT, EVA, BEiT: "embedding" (default), the patch projection with the patches' position
          embeddings; the class token belongs to the upper segment. "blocks.i": with the class
          token and blocks 0 to i.
        - CaiT, XCiT: likewise, but the class token belongs to the upper segment at every cut.
        - PiT: "embedding" (default); "transformers.i": with the class token and stages 0 to i.
        - VGG: "features.i", layers 0 to i; by default two convolutions and one pooling.
        - Other CNNs, Swin and the like: "stem", or a stage: "layer1" to "layer4" of a ResNet, "s1"
          to "s4" of a RegNet, "blocks.i" of an EfficientNet or MobileNet, "layers.i" of a Swin,
          "features.denseblock1" of a DenseNet, "blocks.i" of an MLP-Mixer, "stages.i" of most
          others. The default is the first stage whose map has a quarter of the image's side, or
          else the first; a model without such stages (DPN, VOLO, ...) has the cut "stem" only.
        - LeNet-5: "conv1", "pool1", "conv2" (default), "pool2".
    num_classes, channels
        Numbers of classes and of image channels.
    image_size, patch_size
        Side in pixels. Only transformers have patches; their size must divide the image size.
    depth
        Number of blocks of a ViT, EVA, BEiT, CaiT or XCiT, ignored for other models; None
        keeps the model's own, which pretrained weights need. The default model is CutMixSL's
        ViT-Tiny.
    seed
        Seed of the initial weights; None draws from torch's default generator.
    positions
        The segment that adds the position embeddings of a transformer's patches. "upper": by slot,
        to whichever patch is in it, for methods that shuffle patches; only for the cut
        "embedding". A CNN has none, though its zero padding shows the borders of a map. Nor has a
        Swin, NesT, MLP-Mixer, LeViT or another model whose layers know the slots instead: for them
        "upper" is allowed only below such layers, often only for the cut "stem".
    cell
        A feature map (b, C, H, W), of a CNN or a Swin, is treated as patches of `cell` x `cell`
        pixels of the map: N = (H / cell) (W / cell), width C cell². Tokens stay as they are.
    **timm_options
        Passed to `timm.create_model` (drop_rate=0.1, pretrained=True, ...).

    Returns
    -------
    SplitModel
        (lower, upper); `upper(lower(x))` equals the whole model bit for bit.

    Raises
    ------
    ValueError
        If the model is unknown or cannot be cut, has no such cut, or a size does not fit; the
        message lists the allowed values.
    """
    if positions not in ("lower", "upper"):
        raise ValueError(f"positions is {positions!r}; it must be 'lower' or 'upper'")
    request = Request(
        name, cut_at, num_classes, channels, image_size, patch_size, depth, positions, cell,
        timm_options,
    )  # fmt: skip
    with _seeded(seed):
        return open_vision_model(request).cut()


def split_vision_parts(
    name: str = "vit_tiny_patch16_224",
    *,
    head_to: str | None = None,
    trunk_to: str | None = None,
    num_classes: int = 10,
    channels: int = 1,
    image_size: int = 32,
    patch_size: int = 4,
    depth: int | None = 6,
    seed: int | None = None,
    **timm_options: Any,
) -> VisionParts:
    """Build a vision model and cut it in three, for the U shape.

    Between the two cuts the tokens keep their number and width, as in the blocks of a ViT (deit*,
    eva*, beit*, ...), CaiT, XCiT or MLP-Mixer. A CNN, Swin or PiT has no such cuts.

    Parameters
    ----------
    head_to, trunk_to
        The last part of the head and of the trunk, by the names of `split_vision_model`'s `cut_at`,
        such as "blocks.1". By default the tail is one block with norm and classifier (without a
        block, if there are two or fewer), and the head the embedding, with one block where a class
        token joins the patches.
    name, num_classes, channels, image_size, patch_size, depth, seed, **timm_options
        As those of `split_vision_model`.

    Returns
    -------
    VisionParts
        (head, trunk, tail); `tail(trunk(head(x)))` equals the whole model bit for bit.

    Raises
    ------
    ValueError
        If the model is unknown or cannot be cut in three, has no such cuts, or a size does not
        fit; the message lists the allowed values.
    """
    request = Request(
        name, None, num_classes, channels, image_size, patch_size, depth, "lower", 1,
        timm_options,
    )  # fmt: skip
    with _seeded(seed):
        return open_vision_model(request).cut_in_three(head_to, trunk_to)


def _seeded(seed: int | None) -> AbstractContextManager[None]:
    """Return a context in which weights are drawn from a seed, or from torch's generator."""
    return nullcontext() if seed is None else seeded_draws(torch.device("cpu"), seed)


def _check_numbers(request: Request) -> None:
    if request.num_classes is None:
        raise ValueError(
            "num_classes is None; pass num_classes=, the number of classes that images can have"
        )
    for name in ("num_classes", "channels", "image_size", "patch_size", "depth", "cell"):
        value = getattr(request, name)
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise ValueError(
                f"{name} is {value!r}; it must be a whole number: images and patches are square"
            )
    for theirs, ours in {"img_size": "image_size", "in_chans": "channels"}.items():
        if theirs in request.options:
            raise ValueError(f"timm's {theirs} is {ours} here: {ours}={request.options[theirs]!r}")


def open_vision_model(request: Request) -> Cuttable:
    """Build a vision model and divide it into stages; see `split_vision_model`.

    Raises
    ------
    ValueError
        If the model is unknown or cannot be cut, or a size does not fit.
    """
    _check_numbers(request)
    return _family(request.name)(request)


def _family(name: str) -> Callable[[Request], Cuttable]:
    """Return the function that opens models of this model's family."""
    if name == "lenet5":
        return open_lenet5
    family = family_of(name)
    from timm.models.pit import PoolingVisionTransformer
    from timm.models.vgg import VGG

    if plain_transformer(family) is not None:
        return open_vit
    if class_attention(family) is not None:
        return partial(open_class_attention, family=family)
    for timm_class, split in (
        (PoolingVisionTransformer, open_pit),
        (VGG, open_vgg),
    ):
        if issubclass(family, timm_class):
            return split
    if (layout := layout_of(family)) is not None:
        return partial(open_staged, family=family, layout=layout)
    raise ValueError(
        cannot_cut(
            name, f"the parts of timm's {family.__name__} are not known here, or not in a row"
        )
    )
