"""A client's shuffled batches, whose whole state is the number of batches drawn so far."""

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
    """A data set that makes a whole batch at once."""

    def batch(self, indices: np.ndarray) -> Example:
        """Return (inputs (b, ...), labels int64 (b,)) of the examples at `indices`."""


class Batches:
    """Endless batches of `size` examples, reshuffled every epoch; a short last one is dropped.

    Fewer examples than `size` are drawn with replacement.

    Parameters
    ----------
    drawn
        How many batches were drawn before.

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
        """The examples of the last batch, by their index in the data."""

    def next_batch(self, seed: int, client: int) -> Example:
        """Draw the next batch: (inputs (size, ...), labels int64 (size,))."""
        if self.per_epoch == 0:
            rng = frozen_generator(derive_seed(seed, "replacement", client, self.drawn))
            chosen = rng.randint(self.examples, size=self.size)
        else:
            epoch, position = divmod(self.drawn, self.per_epoch)
            rng = frozen_generator(derive_seed(seed, "shuffle", client, epoch))
            start = position * self.size
            chosen = rng.permutation(self.examples)[start : start + self.size]
        self.drawn += 1
        self.indices = np.asarray(chosen, dtype=np.int64)
        return fetch(self.data, self.indices)


def fetch(data: Dataset[Example], indices: np.ndarray) -> Example:
    """Return the examples at `indices` as one batch."""
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
