"""Division of samples among clients: evenly, or by Flower Datasets, once per process."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.words import allowed_range, are, counted

Scheme = Literal["iid", "dirichlet"]
_SCHEMES = ("iid", "dirichlet")
_MAX_ALPHA = 1e9  # sums over a thousand parts must not overflow; at 1e9, shares are even


def partition_indices(
    labels: np.ndarray,
    num_partitions: int,
    *,
    scheme: Scheme = "iid",
    alpha: float = 0.1,
    seed: int = 0,
    min_size: int = 0,
    allow_empty: bool = False,
) -> list[np.ndarray]:
    """Divide samples into disjoint parts that together contain all of them.

    The parts depend only on the arguments and are cached, so that a thousand clients in one
    process can each request their own.

    Parameters
    ----------
    labels
        Integers of shape (n,), one label per sample.
    num_partitions
        Number of parts, 1..n; with `allow_empty` any from 1.
    scheme
        "iid": samples are shuffled and dealt into parts whose sizes differ by at most one.
        "dirichlet": for each class, the shares of the parts are drawn from Dirichlet(alpha);
        parts differ in size and may be empty.
    alpha
        Concentration, > 0 and <= 1e9; the smaller, the fewer classes a part has. Not used by "iid".
    seed
        Seed of the shuffle and the draws, >= 0.
    min_size
        Minimum number of samples of a part; "dirichlet" draws up to eleven times to reach it.
    allow_empty
        Whether there may be more parts than samples, so that some are empty.

    Returns
    -------
    list of np.ndarray
        `num_partitions` read-only int64 arrays of indices in `labels`, each in random order.

    Raises
    ------
    DataError
        If an argument is outside its range or `min_size` cannot be met.

    Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks"
    (2019), section 4, as implemented in flwr_datasets.partitioner.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"labels are {labels.dtype} of shape {labels.shape}; they must be integers in one "
            "dimension"
        )
    if scheme not in _SCHEMES:
        raise DataError(
            f"the partition scheme is {scheme!r}; it must be one of {', '.join(_SCHEMES)}"
        )
    enough = len(labels) > 0 if allow_empty else len(labels) >= num_partitions
    if num_partitions < 1 or not enough:
        raise DataError(
            f"{counted(len(labels), 'sample')} cannot be divided among "
            f"{counted(num_partitions, 'client')}; {allowed_range(1, len(labels))} "
            "(--nodes, or num-partitions of deployed nodes)"
        )
    if seed < 0 or min_size < 0:
        raise DataError(f"seed is {seed} and min_size {min_size}; both must be 0 or more")
    if scheme == "iid":
        if len(labels) // num_partitions < min_size:
            raise DataError(
                f"{counted(len(labels), 'sample')} among {counted(num_partitions, 'client')} "
                f"{are(len(labels))} fewer than {min_size} each"
            )
        return list(_dealt(len(labels), num_partitions, seed))
    if not 0 < alpha <= _MAX_ALPHA:
        raise DataError(
            f"alpha is {alpha}; the Dirichlet concentration must be greater than 0 and at most "
            f"{_MAX_ALPHA:g}"
        )
    packed = labels.astype(np.int64, copy=False).tobytes()
    return list(_by_label(packed, num_partitions, float(alpha), seed, min_size))


def check_index(index: int, num_clients: int) -> None:
    """Raise DataError unless `index` is in 0..num_clients-1."""
    if not 0 <= index < num_clients:
        raise DataError(
            f"there is no client {index}; clients are numbered 0..{num_clients - 1}: partition-id "
            f"must be one of these, since num-partitions is {num_clients}"
        )


def check_samples(samples: int, test_samples: int = 0) -> None:
    """Raise DataError for a negative number of training or of test examples."""
    for name, number in (("samples", samples), ("test_samples", test_samples)):
        if number < 0:
            raise DataError(f"{name} is {number}; it must be 0 (all) or more")


@dataclass(frozen=True, kw_only=True)
class Division:
    """A division of a data set's training and test examples among clients, both alike.

    Parameters
    ----------
    source, kind
        Name of the data set, and what an example of it is called, such as "image".
    num_clients
        Number of clients, at most the number of training examples. If there are fewer test
        examples, some clients have none of them.
    scheme, alpha, seed
        As for `partition_indices`.
    """

    source: str
    kind: str
    num_clients: int
    scheme: Scheme
    alpha: float
    seed: int

    def part(
        self, index: int, train: np.ndarray, test: np.ndarray, *, samples: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of one client's training and test examples.

        Parameters
        ----------
        index
            Index of the client, 0..num_clients-1.
        train, test
            The labels of all training and of all test examples, int64 (n,) and (m,).
        samples
            Number of training examples that a client must have with "iid".

        Raises
        ------
        DataError
            If there is no such client, the examples cannot be divided so, or with "iid" the client
            has too few of them.
        """
        check_index(index, self.num_clients)
        train_indices, tests = (
            self._divided(labels, split)[index]
            for split, labels in (("training", train), ("test", test))
        )
        self._check_enough(index, len(train_indices), len(train), samples)
        return train_indices, tests

    def sizes(self, train: np.ndarray, *, samples: int = 0) -> list[int]:
        """Return the number of training examples of each client, at most `samples`; 0: all.

        Raises
        ------
        DataError
            If they cannot be divided so, or with "iid" a client has fewer than `samples`.
        """
        sizes = [len(part) for part in self._divided(train, "training")]
        # With "iid", none has fewer than the last one.
        self._check_enough(self.num_clients - 1, sizes[-1], len(train), samples)
        return [min(size, samples) if samples else size for size in sizes]

    def _divided(self, labels: np.ndarray, split: str) -> list[np.ndarray]:
        try:
            return partition_indices(
                labels,
                self.num_clients,
                scheme=self.scheme,
                alpha=self.alpha,
                seed=self.seed,
                allow_empty=split == "test",
            )
        except DataError as error:
            raise DataError(f"{split} {self.kind}s of {self.source!r}: {error}") from error

    def _check_enough(self, index: int, count: int, in_all: int, samples: int) -> None:
        if self.scheme == "iid" and count < samples:
            number = self.num_clients
            raise DataError(
                f"client {index} of {number} has {counted(count, f'training {self.kind}')} of "
                f"{self.source!r}, fewer than the {samples} asked for (samples-per-client); "
                f"use up to {counted(in_all // number, 'sample')} a client"
            )


@functools.lru_cache(maxsize=16)
def _dealt(number: int, num_partitions: int, seed: int) -> tuple[np.ndarray, ...]:
    """Shuffle samples and cut them into even parts, as `IidPartitioner` of Flower Datasets."""
    order = np.random.default_rng(seed).permutation(number)
    # If there are more parts than samples, a sample takes several places, and its part is at the
    # first of them: so those with a sample are spread among those without.
    places = math.ceil(num_partitions / number)
    dealt = np.array_split(np.arange(number * places), num_partitions)
    return _read_only(order[part[part % places == 0] // places] for part in dealt)


@functools.lru_cache(maxsize=16)
def _by_label(
    labels: bytes, num_partitions: int, alpha: float, seed: int, min_size: int
) -> tuple[np.ndarray, ...]:
    """Divide samples by flwr-datasets' Dirichlet partitioner."""
    datasets = import_extra("datasets", "dividing samples among clients")
    partitioners = import_extra("flwr_datasets.partitioner", "dividing samples among clients")
    column = np.frombuffer(labels, np.int64)
    # Flower Datasets make no more parts than there are rows: if there are to be more, each sample
    # gets several rows, of which one counts.
    copies = math.ceil(num_partitions / len(column))
    chosen = np.random.default_rng(seed).integers(copies, size=len(column))
    samples = np.repeat(np.arange(len(column)), copies)
    counting = np.zeros(len(samples), bool)
    counting[np.arange(0, len(samples), copies) + chosen] = True
    partitioner = partitioners.DirichletPartitioner(
        num_partitions,
        partition_by="label",
        alpha=alpha,
        min_partition_size=min_size,
        self_balancing=False,
        seed=seed,
    )
    partitioner.dataset = datasets.Dataset.from_dict(
        {"row": np.arange(len(samples)), "label": column[samples]}
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning for each draw below min_size
            parts = [
                np.array(partitioner.load_partition(part)[:]["row"], np.int64)
                for part in range(num_partitions)
            ]
    except ValueError as error:
        raise DataError(
            f"{counted(len(column), 'sample')} could not be divided among "
            f"{counted(num_partitions, 'client')} with alpha {alpha} and at least {min_size} each; "
            "allow smaller parts or a larger alpha"
        ) from error
    return _read_only(samples[rows[counting[rows]]] for rows in parts)


def _read_only(parts: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    arrays = tuple(parts)
    for part in arrays:
        part.flags.writeable = False
    return arrays
