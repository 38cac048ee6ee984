"""Images of several labels, composed of four Fashion-MNIST images each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.seeding import derive_seed, frozen_generator

_IMAGES_EACH = 4


def compose_sets(sets: RawSets) -> RawSets:
    """Compose a multi-label set: each image shows four others at half their size.

    An image's labels are the classes of the four. There are as many images as in the given set, and
    each of its images is shown once in each corner. The same set always gives the same images.

    Parameters
    ----------
    sets
        Images of even height and width, with a class each.

    Raises
    ------
    DataError
        If a side is odd, or images have several labels already.
    """
    train, test = (
        _compose(split, len(sets.classes), number)
        for number, split in enumerate((sets.train, sets.test))
    )
    return RawSets(train, test, sets.classes)


def _compose(split: Split, classes: int, number: int) -> Split:
    images, labels = split
    n, _, height, width = images.shape
    if height % 2 or width % 2 or labels.ndim != 1:
        raise DataError(
            f"images of {height} x {width} pixels with labels of shape {labels.shape} cannot be "
            "composed; expected even sides and one class for each image"
        )
    rng = frozen_generator(derive_seed(0, "composed images", number))
    orders = [rng.permutation(n) for _ in range(_IMAGES_EACH)]
    small = _halved(images)
    rows = np.zeros((n, classes), np.int64)
    for order in orders:
        rows[np.arange(n), labels[order]] = 1
    return Split(_in_corners([small[order] for order in orders]), rows)


def _halved(images: np.ndarray) -> np.ndarray:
    """Return uint8 images of half the sides: means of 2 x 2 pixels."""
    n, channels, height, width = images.shape
    blocks = images.reshape(n, channels, height // 2, 2, width // 2, 2)
    means: np.ndarray = blocks.mean((3, 5), dtype=np.float32)
    return means.round().astype(np.uint8)


def _in_corners(parts: Sequence[np.ndarray]) -> np.ndarray:
    above, below = (np.concatenate(pair, axis=3) for pair in (parts[:2], parts[2:]))
    return np.concatenate([above, below], axis=2)
