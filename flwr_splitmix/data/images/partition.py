"""Division of image data sets among clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.packed import ImageDataset
from flwr_splitmix.data.images.sets import ImageSets
from flwr_splitmix.data.partition import (
    Scheme,
    check_enough,
    check_index,
    check_number,
    partition_indices,
)


def client_split(
    sets: ImageSets,
    index: int,
    num_clients: int,
    *,
    scheme: Scheme = "iid",
    alpha: float = 0.1,
    seed: int = 0,
    samples: int = 0,
    test_fraction: float = 1.0,
) -> tuple[ImageDataset, ImageDataset]:
    """Return the training and the test images of one client.

    The test images are partitioned with the same scheme, alpha and seed as the training images.
    If there are fewer of them than clients, some clients have none. With "dirichlet" a client gets
    the same share of a class's test images as of its training images, up to rounding, provided that
    both splits have images of the same classes; a client with few images of a class may have none
    of it to test on.

    Parameters
    ----------
    sets
        The images of all clients.
    index
        Index of the client, 0..num_clients-1.
    num_clients
        Number of clients, at most the number of training images.
    scheme, alpha, seed
        As for `partition_indices`.
    samples
        Number of training images to take from the start of the client's part; 0: all. With
        "dirichlet" a client may have fewer.
    test_fraction
        Fraction of the client's test images to take, rounded up; > 0 and <= 1.

    Returns
    -------
    tuple of ImageDataset
        Training part, test part. The latter may be empty; with "dirichlet" both may.

    Raises
    ------
    DataError
        If an argument is outside its range, or with "iid" a client has fewer than `samples`
        training images.
    """
    check_index(index, num_clients)
    if not 0 < test_fraction <= 1:
        raise DataError(f"test_fraction is {test_fraction}; it must lie in (0, 1]")
    check_number(samples)
    parts = []
    for kind, dataset in (("training", sets.train), ("test", sets.test)):
        try:
            divided = partition_indices(
                labels_to_divide_by(dataset, scheme),
                num_clients,
                scheme=scheme,
                alpha=alpha,
                seed=seed,
                allow_empty=kind == "test",
            )
        except DataError as error:
            raise DataError(f"{kind} images of {sets.name!r}: {error}") from error
        parts.append(divided[index])
    train, test = parts
    if scheme == "iid":
        check_enough(
            sets.name,
            in_all=len(sets.train),
            there=len(train),
            samples=samples,
            index=index,
            num_clients=num_clients,
        )
    kept = math.ceil(test_fraction * len(test))
    return sets.train.subset(train[:samples] if samples else train), sets.test.subset(test[:kept])


def labels_to_divide_by(dataset: ImageDataset, scheme: Scheme) -> np.ndarray:
    """Return the labels for `partition_indices`, which with "iid" only counts them.

    Raises
    ------
    DataError
        If images have several labels each, and the scheme needs their classes.
    """
    if not dataset.multi_label:
        return dataset.labels
    if scheme != "iid":
        raise DataError(
            f"the partition scheme is {scheme!r}, which divides images by their class, but these "
            "have several labels each; allowed with them is 'iid' (partition)"
        )
    return np.zeros(len(dataset), np.int64)


def client_sizes(
    sets: ImageSets,
    num_clients: int,
    *,
    scheme: Scheme = "iid",
    alpha: float = 0.1,
    seed: int = 0,
    samples: int = 0,
) -> list[int]:
    """Return the number of training images of each client, as divided by `client_split`.

    With "iid" it is computed without loading `datasets` or `flwr_datasets`.

    Raises
    ------
    DataError
        If `client_split` raises it for any of the clients.
    """
    if scheme == "iid" and 1 <= num_clients <= len(sets.train):
        least, more = divmod(len(sets.train), num_clients)
        sizes = [least + (client < more) for client in range(num_clients)]
        check_number(samples)
        check_enough(
            sets.name,
            in_all=len(sets.train),
            there=least,
            samples=samples,
            index=num_clients - 1,
            num_clients=num_clients,
        )
        return [min(size, samples) if samples else size for size in sizes]
    options: dict[str, Any] = {"scheme": scheme, "alpha": alpha, "seed": seed, "samples": samples}
    parts = (client_split(sets, i, num_clients, **options)[0] for i in range(num_clients))
    return [len(part) for part in parts]
