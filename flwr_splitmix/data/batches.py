"""A client's shuffled batches, whose only state is the number of batches drawn so far."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from flwr_splitmix.seeding import derive_seed, frozen_generator

Example = tuple[Tensor, Tensor]


@runtime_checkable
class Batched(Protocol):
    """A data set that returns whole batches."""

    def batch(self, indices: np.ndarray) -> Example:
        """Return (inputs (b, ...), labels int64 (b,)) of the examples at `indices`."""


class Batches:
    """Endless batches of `size` examples, reshuffled every epoch; a short last batch is dropped.

    If there are fewer examples than `size`, batches are drawn with replacement.

    Parameters
    ----------
    data, size
        The examples, and their number per batch.
    drawn
        Number of batches drawn before.

    Raises
    ------
    ValueError
        If `size` is below 1.
    """

    def __init__(self, data: Dataset[Example], size: int, *, drawn: int = 0) -> None:
        if size < 1:
            raise ValueError(f"batch_size is {size}; it must be at least 1")
        self.data = data
        self.size = size
        self.examples = len(data)  # type: ignore[arg-type]
        self.per_epoch = self.examples // size
        self.drawn = drawn
        self.indices = np.empty(0, dtype=np.int64)
        """Indices in the data of the last batch's examples, int64 (size,)."""

    def next_batch(self, seed: int, client: int) -> Example:
        """Draw the next batch: (inputs (size, ...), labels int64 (size,))."""
        self.indices = batch_indices(self.examples, self.size, seed, client, self.drawn)
        self.drawn += 1
        return fetch(self.data, self.indices)


def batch_indices(examples: int, size: int, seed: int, client: int, number: int) -> np.ndarray:
    """Return the indices of the examples in a client's batch, int64 (size,).

    Parameters
    ----------
    examples, size
        Numbers of the client's examples, and of examples per batch.
    seed
        Seed of the run.
    client
        Index of the client.
    number
        Index of the batch, from 0.
    """
    per_epoch = examples // size
    if per_epoch == 0:
        rng = frozen_generator(derive_seed(seed, "replacement", client, number))
        return np.asarray(rng.randint(examples, size=size), dtype=np.int64)
    epoch, position = divmod(number, per_epoch)
    rng = frozen_generator(derive_seed(seed, "shuffle", client, epoch))
    chosen = rng.permutation(examples)[position * size : (position + 1) * size]
    return np.asarray(chosen, dtype=np.int64)


def fetch(data: Dataset[Example], indices: np.ndarray) -> Example:
    """Return the examples at `indices` as one batch, with int64 labels.

    Raises
    ------
    TypeError
        If the data set does not return (input, label) pairs.
    """
    if isinstance(data, Batched):
        inputs, labels = data.batch(indices)
    elif isinstance(data, TensorDataset):
        inputs, labels = data[torch.as_tensor(indices)]
    else:
        rows = [data[int(i)] for i in indices]
        if not isinstance(rows[0], (tuple, list)) or len(rows[0]) != 2:
            raise TypeError(
                "a data set must give (input, label) pairs, this one gives "
                f"{type(rows[0]).__name__}"
            )
        inputs, labels = default_collate(rows)
    return inputs, labels.long()
