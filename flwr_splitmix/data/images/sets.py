"""A training set and its test set of images, from any source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.packed import ImageDataset


class Split(NamedTuple):
    """One split as read: uint8 images (n, C, H, W), int64 labels (n,) or multi-label (n, L)."""

    images: np.ndarray
    labels: np.ndarray


class RawSets(NamedTuple):
    """Result of a reader: two splits with equal (C, H, W), and class names by label."""

    train: Split
    test: Split
    classes: tuple[str, ...]


@dataclass(frozen=True)
class ImageSets:
    """A training and a test set with the same image shape and the same classes.

    Parameters
    ----------
    train, test
        Both return float32 images (C, S, S) and int64 labels in 0..len(classes)-1; or, if they are
        multi-label, labels (len(classes),) of 0 and 1.
    classes
        Names of the classes or of the labels.
    name
        Source of the sets.
    """

    train: ImageDataset
    test: ImageDataset
    classes: tuple[str, ...]
    name: str

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of the labels."""
        return self.train.multi_label


Statistics = float | tuple[float, ...]
"""A mean or a standard deviation, of all channels or of each."""


def assemble(
    raw: RawSets,
    name: str,
    *,
    image_size: int,
    channels: int | None,
    mean: Statistics,
    std: Statistics,
) -> ImageSets:
    """Check a reader's images, fit them to `channels` and `image_size`, and make the sets.

    Parameters
    ----------
    raw
        A reader's result; grey images (C = 1) are repeated if `channels` is 3.
    name
        The source, for messages and `ImageSets.name`.
    image_size, channels
        As for `load_images`.
    mean, std
        As for `ImageDataset`; for grey images, values of several channels are averaged.

    Raises
    ------
    DataError
        If a split is empty, or the test split has a class that the training split lacks.
    """
    for split, kind in ((raw.train, "training"), (raw.test, "test")):
        if not split.images.size:
            raise DataError(f"the {kind} split of {name!r} holds no image; at least one is needed")
    multi_label = raw.train.labels.ndim == 2
    unknown = np.setdiff1d(raw.test.labels, raw.train.labels)
    if unknown.size and not multi_label:
        names = ", ".join(repr(raw.classes[label]) for label in unknown)
        raise DataError(
            f"the test split of {name!r} has the class {names}, of which the training split "
            "has no image; the test classes must all occur in training"
        )
    train, test = (
        ImageDataset(
            _fit(split.images, image_size, channels),
            split.labels,
            num_classes=len(raw.classes),
            image_size=image_size,
            mean=_of_channels(mean, channels or split.images.shape[1]),
            std=_of_channels(std, channels or split.images.shape[1]),
        )
        for split in (raw.train, raw.test)
    )
    return ImageSets(train, test, raw.classes, name)


def _of_channels(value: Statistics, channels: int) -> Statistics:
    # For grey images, timm sums the weights of colours, as if their three colours were equal.
    return sum(value) / len(value) if channels == 1 and isinstance(value, tuple) else value


def _fit(images: np.ndarray, image_size: int, channels: int | None) -> np.ndarray:
    if max(images.shape[2:]) > image_size:
        # Only images of idx files: other readers resize each image. torch's resizing, antialiased
        # like PIL's, needs no imaging package.
        images = F.interpolate(
            torch.tensor(images), size=(image_size, image_size), mode="bilinear", antialias=True
        ).numpy()
    if channels is not None and images.shape[1] != channels:
        images = np.repeat(images, channels, axis=1)
    return images
