"""Division of image data sets among clients."""

from __future__ import annotations

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.packed import ImageDataset
from flwr_splitmix.data.images.sets import ImageSets
from flwr_splitmix.data.partition import Division, Scheme, check_samples
from flwr_splitmix.values import check_kind, whole_number


def client_split(
    sets: ImageSets,
    index: int,
    num_clients: int,
    *,
    scheme: Scheme = "iid",
    alpha: float = 0.1,
    seed: int = 0,
    samples: int = 0,
    test_samples: int = 0,
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
    samples, test_samples
        Numbers of images to take from the start of the client's parts; 0: all. A client may have
        fewer of them, but with "iid" no fewer training images.

    Returns
    -------
    tuple of ImageDataset
        Training part, test part. The latter may be empty; with "dirichlet" both may.

    Raises
    ------
    DataError
        If an argument is outside its range, or with "iid" a client has fewer than `samples`
        training images.
    TypeError
        If `sets` are no image sets.
    ValueError
        If an index, a number or the seed is not a whole number.
    """
    needed = (
        "what load_images returns; a data set of your own is divided by "
        "torch.utils.data.Subset(data, partition_indices(labels, num_clients)[index])"
    )
    check_kind("sets", sets, ImageSets, needed)
    index, num_clients = whole_number("index", index), whole_number("num_clients", num_clients)
    seed, samples = whole_number("seed", seed), whole_number("samples", samples)
    test_samples = whole_number("test_samples", test_samples)
    check_samples(samples, test_samples)
    train, test = _division(sets, num_clients, scheme, alpha, seed).part(
        index,
        labels_to_divide_by(sets.train, scheme),
        labels_to_divide_by(sets.test, scheme),
        samples=samples,
    )
    train_part = sets.train.subset(train[: samples or None])
    return train_part, sets.test.subset(test[: test_samples or None])


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

    Raises
    ------
    DataError
        If `client_split` raises it of any client's training images.
    """
    check_samples(samples)
    division = _division(sets, num_clients, scheme, alpha, seed)
    return division.sizes(labels_to_divide_by(sets.train, scheme), samples=samples)


def _division(
    sets: ImageSets, num_clients: int, scheme: Scheme, alpha: float, seed: int
) -> Division:
    return Division(
        source=sets.name,
        kind="image",
        num_clients=num_clients,
        scheme=scheme,
        alpha=alpha,
        seed=seed,
    )
