"""LeNet-5 and its cuts, the small CNN of label-inference experiments."""

from __future__ import annotations

from torch import nn

from flwr_splitmix.segments.vision.feature_maps import open_cnn
from flwr_splitmix.segments.vision.split_model import Cuttable, Request, Stage

MIN_SIZE = 16
"""Image side in pixels that two convolutions and two poolings reduce to one pixel."""


def open_lenet5(request: Request) -> Cuttable:
    """Build LeNet-5, cut by default at `conv2`, before its pooling.

    Each convolution is followed by tanh and average pooling. The cuts `conv1` and `conv2` are
    after the tanh, with the pooling in the upper segment; `pool1` and `pool2` are after the
    pooling. At 32 pixels, the maps at `conv1`, `pool1`, `conv2` and `pool2` are LeCun's 28 x 28,
    14 x 14, 10 x 10 and 5 x 5; of the layers, only the first linear one depends on the size.

    Raises
    ------
    ValueError
        If the images are smaller than 16 pixels, or options for timm are given.
    """
    if request.options:
        raise ValueError(f"lenet5 is not timm's and takes no option {next(iter(request.options))}")
    if request.image_size < MIN_SIZE:
        raise ValueError(
            f"image_size {request.image_size} is too small for lenet5, "
            f"at least {MIN_SIZE} is needed"
        )
    side = ((request.image_size - 4) // 2 - 4) // 2
    stages: list[Stage] = [
        ("conv1", nn.Sequential(nn.Conv2d(request.channels, 6, 5), nn.Tanh())),
        ("pool1", nn.AvgPool2d(2)),
        ("conv2", nn.Sequential(nn.Conv2d(6, 16, 5), nn.Tanh())),
        ("pool2", nn.AvgPool2d(2)),
    ]
    cuts = {name: i + 1 for i, (name, _) in enumerate(stages)}
    stages += [
        ("flat", nn.Flatten()),
        ("fc1", nn.Sequential(nn.Linear(16 * side**2, 120), nn.Tanh())),
        ("fc2", nn.Sequential(nn.Linear(120, 84), nn.Tanh())),
        ("fc3", nn.Linear(84, request.num_classes)),
    ]
    return open_cnn(request, stages, cuts, "conv2")
