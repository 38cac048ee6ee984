"""The images of a run: the whole data set, and each client's part of it."""

from __future__ import annotations

import functools

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.data import ImageDataset, ImageSets, client_split, load_images
from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.partition import client_sizes
from flwr_splitmix.segments.vision.zoo import pretrained_normalisation


def images_of(config: VisionConfig) -> ImageSets:
    """Return the run's training and test images, normalised for pretrained weights if used.

    They are read once in a process, whatever changes in their folder afterwards.

    Raises
    ------
    DataError
        If they cannot be read, or have only one class.
    """
    expected = pretrained_normalisation(config.model) if config.pretrained else None
    try:
        images = _load(config.dataset, config.image_size, expected, config.skip_corrupt)
        if len(images.classes) < 2:
            raise DataError(f"its only class is {images.classes[0]!r}; it must have at least two")
    except DataError as error:
        raise DataError(f"run-config: dataset is {config.dataset!r}, but {error}") from None
    return images


@functools.lru_cache(maxsize=4)
def _load(
    source: str,
    image_size: int,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None,
    skip_corrupt: bool,
) -> ImageSets:
    """Load images once for all clients of this process, without a look at every file for each."""
    mean, std = normalisation or (None, None)
    return load_images(source, image_size=image_size, mean=mean, std=std, skip_corrupt=skip_corrupt)


def client_images(
    config: VisionConfig, client: int, clients: int
) -> tuple[ImageDataset, ImageDataset]:
    """Return the training and the test images of one client.

    Raises
    ------
    DataError
        Raised by `client_split`.
    """
    return client_split(
        images_of(config),
        client,
        clients,
        scheme=config.partition,
        alpha=config.partition_alpha,
        seed=config.seed,
        samples=config.samples_per_client,
    )


def sizes_of_clients(config: VisionConfig, clients: int) -> list[int]:
    """Return the number of training images of each client.

    Raises
    ------
    DataError
        If `client_images` raises it for any client.
    """
    return client_sizes(
        images_of(config),
        clients,
        scheme=config.partition,
        alpha=config.partition_alpha,
        seed=config.seed,
        samples=config.samples_per_client,
    )
