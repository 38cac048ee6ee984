"""The images of one seed of the matrix: training, test, held-out victims and public, disjoint."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.data import DataError, ImageDataset, load_images
from flwr_splitmix.experiments.privacy.sizes import Size
from flwr_splitmix.seeding import frozen_generator

_TEST_SEED = 2024
"""Of the choice of test images: one for all seeds, as in the experiments on accuracy."""


class MatrixImages(NamedTuple):
    """All that victims are trained and attacks are fitted and scored on.

    Attributes
    ----------
    clients
        Each client's training images.
    test
        Images that say the accuracy.
    held_out
        Victims that nothing learned from, twice as many as are attacked.
    public
        The attacker's.
    """

    clients: list[ImageDataset]
    test: ImageDataset
    held_out: ImageDataset
    public: Pictures
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        return self.public.shape


def load_matrix_images(size: Size, source: str, seed: int) -> MatrixImages:
    """Read the data set and divide it.

    Raises
    ------
    DataError
        If it cannot be read, or is too small.
    """
    sets = load_images(source, image_size=size.image_size)
    used = size.clients * size.samples
    order = np.random.default_rng(seed).permutation(len(sets.train))
    test_order = frozen_generator(_TEST_SEED).permutation(len(sets.test))
    if len(order) < used + 2 * size.batch or len(test_order) < size.test + 2 * size.held_out:
        raise DataError(
            f"{sets.name!r} has {len(sets.train)} training and {len(sets.test)} test images; the "
            f"matrix at scale {size.name} needs {used + size.public} and "
            f"{size.test + 2 * size.held_out}"
        )
    parts = np.split(order[:used], size.clients)
    held_out = test_order[size.test : size.test + 2 * size.held_out]
    return MatrixImages(
        [sets.train.subset(part) for part in parts],
        sets.test.subset(test_order[: size.test]),
        sets.test.subset(held_out),
        Pictures.of(sets.train, order[used : used + size.public]),
        sets.train.mean,
        sets.train.std,
        len(sets.classes),
    )
