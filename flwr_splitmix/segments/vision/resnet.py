"""Cuts of timm's ResNets (and ResNeXts, SE-ResNets, ...) after the stem or a stage."""

from __future__ import annotations

from torch import nn

from flwr_splitmix.segments.vision.feature_maps import open_cnn
from flwr_splitmix.segments.vision.split_model import Cuttable, Request, Stage
from flwr_splitmix.segments.vision.zoo import create


def open_resnet(request: Request) -> Cuttable:
    """Build a model of timm's ResNet family, cut by default after `layer1`.

    The stem is convolution, norm, activation and pooling; the stages are `layer1` to `layer4`.
    """
    from timm.models.resnet import ResNet

    model = create(request, ResNet)
    names = [name for name, _ in model.named_children() if name.startswith("layer")]
    stages: list[Stage] = [
        ("stem", nn.Sequential(model.conv1, model.bn1, model.act1, model.maxpool)),
        *((name, getattr(model, name)) for name in names),
    ]
    cuts = {name: i + 1 for i, (name, _) in enumerate(stages)}
    stages += [
        ("pool", model.global_pool),
        ("drop", nn.Dropout(float(model.drop_rate))),
        ("fc", model.fc),
    ]
    return open_cnn(request, stages, cuts, "layer1")
