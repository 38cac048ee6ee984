"""A client's shuffled batches, whose only state is the number of batches drawn so far."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index

import numpy as np

from flwr_splitmix.data.examples import Example, ExampleSet, check_map_style, fetch
from flwr_splitmix.seeding import order_generator

TEST_BATCH = 250
"""Test examples that go through a model at once."""


class Batches:
    """Endless batches of `size` examples, reshuffled every epoch; a short last batch is dropped.

    If there are fewer examples than `size`, batches are drawn with replacement.

    Parameters
    ----------
    data, size
        The examples, and their number per batch.
    drawn
        Number of batches drawn before.
    floats
        Whether labels may be floating; see `fetch`.

    Attributes
    ----------
    order_key
        A secret from which the order of the examples is drawn; None draws it from the run's seed,
        which the server knows.

    Raises
    ------
    TypeError
        If `size` is not an integer, or `data` is not a map-style data set with a length.
    ValueError
        If `size` is below 1.
    """

    def __init__(
        self, data: ExampleSet, size: int, *, drawn: int = 0, floats: bool = False
    ) -> None:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"batch_size is {size!r}; it must be an integer of at least 1")
        if size < 1:
            raise ValueError(f"batch_size is {size}; it must be at least 1")
        check_map_style("data", data)
        self.data = data
        self.size = index(size)
        self.examples = len(data)  # type: ignore[arg-type]
        self.per_epoch = self.examples // self.size
        self.drawn = drawn
        self.order_key: bytes | None = None
        self._order = EpochOrder()
        self.floats = floats
        self.indices = np.empty(0, dtype=np.int64)
        """Indices in the data of the last batch's examples, int64 (size,)."""

    def first(self, number: int) -> np.ndarray:
        """Return the indices of the first examples, int64 (number,), again if there are fewer."""
        return np.arange(number) % self.examples

    def records(self, seed: int, client: int, first: int, last: int) -> Iterator[np.ndarray]:
        """Yield the indices of the examples in batches `first` to before `last`, int64.

        No batch is drawn by that. Those of one pass, which have no example in common, come as one
        array; batches that are drawn with replacement come one by one.
        """
        source = seed if self.order_key is None else self.order_key
        while first < last:
            end = first + 1
            if self.per_epoch == 0:
                yield batch_indices(self.examples, self.size, source, client, first)
            else:
                epoch, position = divmod(first, self.per_epoch)
                end = min(last, (epoch + 1) * self.per_epoch)
                of_epoch = EpochOrder().of(self.examples, source, client, epoch)
                yield of_epoch[position * self.size :][: (end - first) * self.size]
            first = end

    def next_batch(self, seed: int, client: int) -> Example:
        """Draw the next batch: (inputs (size, ...), labels int64 (size,))."""
        source = seed if self.order_key is None else self.order_key
        place = source, client, self.drawn
        indices = batch_indices(self.examples, self.size, *place, order=self._order)
        self.drawn += 1
        batch = fetch(self.data, indices, floats=self.floats)
        self.indices = indices  # after what can fail: the batch before may be sent once more
        return batch


class EpochOrder:
    """The order of a client's examples in an epoch, kept until another one is needed.

    It takes 8 bytes an example. To draw it for every batch would take time in proportion to the
    square of their number.
    """

    def __init__(self) -> None:
        self._place: tuple[int | bytes, ...] = ()
        self._order = np.empty(0, dtype=np.int64)

    def of(self, examples: int, seed: int | bytes, client: int, epoch: int) -> np.ndarray:
        """Return the indices of all examples in the epoch's order, int64 (examples,)."""
        place = examples, seed, client, epoch
        if place != self._place:
            rng = order_generator(seed, "shuffle", client, epoch)
            self._order, self._place = rng.permutation(examples), place
        return self._order


def batch_indices(
    examples: int,
    size: int,
    seed: int | bytes,
    client: int,
    number: int,
    *,
    order: EpochOrder | None = None,
) -> np.ndarray:
    """Return the indices of the examples in a client's batch, int64 (size,).

    Parameters
    ----------
    examples, size
        Numbers of the client's examples, and of examples per batch.
    seed
        Seed of the run, or a secret key in its place.
    client
        Index of the client.
    number
        Index of the batch, from 0.
    order
        Keeps the order of the epoch for the next call; None draws it for this one.
    """
    per_epoch = examples // size
    if per_epoch == 0:
        rng = order_generator(seed, "replacement", client, number)
        return np.asarray(rng.randint(examples, size=size), dtype=np.int64)
    epoch, position = divmod(number, per_epoch)
    of_epoch = (order or EpochOrder()).of(examples, seed, client, epoch)
    return np.array(of_epoch[position * size : (position + 1) * size], dtype=np.int64)
