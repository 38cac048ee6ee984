"""Cuts of timm's VGGs after any of their layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import nn

from flwr_splitmix.segments.vision.feature_maps import open_cnn
from flwr_splitmix.segments.vision.split_model import Cuttable, Request, Stage
from flwr_splitmix.segments.vision.zoo import create

FULL_SIZE = 224
"""Image side in pixels from which the last map fills the 7 x 7 kernel of VGG's classifier."""

MIN_SIZE = 32
"""Image side in pixels that five poolings reduce to one pixel."""


def open_vgg(request: Request) -> Cuttable:
    """Build a VGG, cut after `features.i`, by default at the papers' cut.

    That is after two convolutions and one pooling (`features.4` of vgg16). Below 224 pixels, the
    classifier is average pooling and one linear layer: VGG's own would enlarge the small last map
    to 7 x 7, and has 120 million weights.

    Raises
    ------
    ValueError
        If the images are smaller than 32 pixels.
    """
    if request.image_size < MIN_SIZE:
        raise ValueError(
            f"{request.name} halves its images five times: image_size {request.image_size} "
            f"is too small, at least {MIN_SIZE} is needed"
        )
    model = _build(request)
    stages: list[Stage] = [(f"features_{i}", layer) for i, layer in enumerate(model.features)]
    cuts = {f"features.{i}": i + 1 for i in range(len(stages))}
    default = f"features.{_papers_cut(model.features)}"
    stages += [("pre_logits", model.pre_logits), ("head", model.head)]
    return open_cnn(request, stages, cuts, default)


def _build(request: Request) -> Any:
    from timm.layers.classifier import ClassifierHead
    from timm.models.vgg import VGG

    small = request.image_size < FULL_SIZE
    options = request.options
    # A classifier of width 1 if it is replaced below: the full one takes half a gigabyte.
    # Pretrained weights fit only the full one.
    narrow = small and not options.get("pretrained", False) and "mlp_ratio" not in options
    model = create(request, VGG, **({"mlp_ratio": 1 / 4096} if narrow else {}))
    if small:
        model.pre_logits = nn.Identity()
        model.head = ClassifierHead(
            model.num_features,
            request.num_classes,
            pool_type=options.get("global_pool", "avg"),
            drop_rate=model.drop_rate,
        )
    return model


def _papers_cut(features: nn.Sequential) -> int:
    """Return the index of the first layer that completes two convolutions and one pooling.

    Source: CutMixSL, section 4.
    """
    convolutions = poolings = 0
    for i, (layer, following) in enumerate(pairwise(features)):
        convolutions += isinstance(layer, nn.Conv2d)
        poolings += isinstance(layer, nn.MaxPool2d)
        # A norm and an activation belong to the convolution before them.
        complete = isinstance(following, nn.Conv2d | nn.MaxPool2d)
        if convolutions >= 2 and poolings and complete:
            return i
    return len(features) - 1
