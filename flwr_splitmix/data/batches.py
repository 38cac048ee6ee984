"""A client's shuffled batches, whose only state is the number of batches drawn so far."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
)

from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.seeding import brief_generator, derive_seed
from flwr_splitmix.values import takes
from flwr_splitmix.words import with_article

Example = tuple[Tensor, Tensor]

TEST_BATCH = 250
"""Test examples that go through a model at once."""

_NEEDED_INPUTS = (
    "needed is one tensor for each example: join several into one, such as with torch.cat, and "
    "take it apart in the first module; of Hugging Face's sets take with_format('torch')"
)

_NEEDED_LABELS = (
    "needed are classes, int64 (batch,), or for several labels rows of 0 and 1, int64 "
    "(batch, labels)"
)

_ONE_NUMBER = "arrays can be converted to"
"""Part of NumPy's messages on an array where one number is needed, as an index or a size."""


class _Indexed(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


ExampleSet = Dataset[Any] | _Indexed
"""Pairs (input, label) by index, with a length: a map-style data set of torch, a list of pairs."""


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
    floats
        Whether labels may be floating; see `fetch`.

    Raises
    ------
    TypeError
        If `size` is no integer, or `data` is no map-style data set with a length.
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
        while first < last:
            end = first + 1
            if self.per_epoch == 0:
                yield batch_indices(self.examples, self.size, seed, client, first)
            else:
                epoch, position = divmod(first, self.per_epoch)
                end = min(last, (epoch + 1) * self.per_epoch)
                of_epoch = EpochOrder().of(self.examples, seed, client, epoch)
                yield of_epoch[position * self.size :][: (end - first) * self.size]
            first = end

    def next_batch(self, seed: int, client: int) -> Example:
        """Draw the next batch: (inputs (size, ...), labels int64 (size,))."""
        place = seed, client, self.drawn
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
        self._place: tuple[int, ...] = ()
        self._order = np.empty(0, dtype=np.int64)

    def of(self, examples: int, seed: int, client: int, epoch: int) -> np.ndarray:
        """Return the indices of all examples in the epoch's order, int64 (examples,)."""
        place = examples, seed, client, epoch
        if place != self._place:
            rng = brief_generator(derive_seed(seed, "shuffle", client, epoch))
            self._order, self._place = rng.permutation(examples), place
        return self._order


def batch_indices(
    examples: int,
    size: int,
    seed: int,
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
        Seed of the run.
    client
        Index of the client.
    number
        Index of the batch, from 0.
    order
        Keeps the order of the epoch for the next call; None draws it for this one.
    """
    per_epoch = examples // size
    if per_epoch == 0:
        rng = brief_generator(derive_seed(seed, "replacement", client, number))
        return np.asarray(rng.randint(examples, size=size), dtype=np.int64)
    epoch, position = divmod(number, per_epoch)
    of_epoch = (order or EpochOrder()).of(examples, seed, client, epoch)
    return np.array(of_epoch[position * size : (position + 1) * size], dtype=np.int64)


def fetch(data: ExampleSet, indices: np.ndarray, *, floats: bool = False) -> Example:
    """Return the examples at `indices` as one batch, with int64 labels.

    Parameters
    ----------
    floats
        Whether floating labels are returned as they are, for a loss of a user's own.

    Raises
    ------
    TypeError
        If the `batch` of a data set takes no array of indices; ExamplesError if it does not return
        (input, label) pairs, inputs are no tensors, or labels are no integers (smaller integers and
        bool are converted).
    """
    pair: Any
    if makes_batches(data):
        pair = _pair(_own_batch(data, indices), "batches of ")
    elif type(data) is TensorDataset:  # a subclass may make its examples otherwise
        pair = _pair(data[torch.as_tensor(indices)], "tensors for ")
    else:
        rows = [_pair(data[int(i)]) for i in indices]
        pair = _input_batch([row[0] for row in rows]), _label_batch([row[1] for row in rows])
    inputs, labels = pair
    if not isinstance(inputs, Tensor):
        raise ExamplesError(f"inputs are {_kind(inputs)}; {_NEEDED_INPUTS}")
    if floats and isinstance(labels, Tensor) and labels.is_floating_point():
        return inputs, labels
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else _kind(labels)
        raise ExamplesError(f"labels are {kind}; {_NEEDED_LABELS}")
    return inputs, labels.long()


def _input_batch(inputs: list[Any]) -> Any:
    try:
        return default_collate(inputs)
    except RuntimeError as error:
        sizes = sorted({tuple(each.shape) for each in inputs if isinstance(each, Tensor)})
        if len(sizes) < 2:
            raise
        raise TypeError(  # no ExamplesError: a server need not know the shapes
            f"inputs have different shapes, such as {sizes[0]} and {sizes[-1]}: bring them to "
            "one in the data set, images such as with torchvision's Resize((32, 32)), series "
            "by padding"
        ) from error
    except TypeError as error:
        raise ExamplesError(
            f"inputs are {_kinds(inputs)}; needed is a tensor: convert images in the data set, "
            "such as with torchvision's ToTensor, and other examples in its method batch(indices)"
        ) from error


def _label_batch(labels: list[Any]) -> Any:
    try:
        return default_collate(labels)
    except (TypeError, RuntimeError) as error:
        if all(isinstance(label, Tensor) for label in labels):
            raise
        raise ExamplesError(f"labels are {_kinds(labels)}; {_NEEDED_LABELS}") from error


def check_map_style(name: str, data: Any) -> None:
    """Refuse an argument that is no map-style data set.

    Raises
    ------
    TypeError
        If it has no length or cannot be indexed, or if it is a mapping of names, or a tuple or
        list of whole arrays, instead of (input, label) pairs; the message begins with the
        argument's name.
    """
    if not _is_map_style(data):
        raise TypeError(
            f"{name} is {type(data).__name__}; needed is a map-style data set with a length "
            f"(__len__ and __getitem__){_map_style_of(name, data)}"
        )
    if isinstance(data, Mapping) and 0 not in data:
        raise TypeError(
            f"{name} is {with_article(type(data).__name__)} of "
            f"{', '.join(map(repr, list(data)[:4]))}; needed are (input, label) pairs: of arrays "
            "of inputs and labels make torch.utils.data.TensorDataset(inputs, labels); of several "
            "splits give one"
        )
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (Tensor, np.ndarray)):
        raise TypeError(
            f"{name} is {with_article(type(data).__name__)} of arrays; needed are (input, label) "
            "pairs: of arrays of inputs and labels make torch.utils.data.TensorDataset(inputs, "
            "labels)"
        )


def _map_style_of(name: str, data: object) -> str:
    """Return how to make a map-style data set of what is none, to end a sentence; "" if unknown."""
    if isinstance(data, DataLoader):
        given = f": give its data set, {name}=loader.dataset"
        if data.collate_fn is default_collate:
            return given
        return f"{given}, with a method batch(indices) that does what the collate_fn did"
    streamed = isinstance(data, Iterable) and not isinstance(data, type)
    if isinstance(data, IterableDataset) or (streamed and not hasattr(data, "__getitem__")):
        return f": if it fits into memory, {name}=list(...) of it"
    return ""


def makes_batches(data: object) -> TypeGuard[Batched]:
    """Return whether a data set's class, or it itself, has a method that makes whole batches.

    One that is only passed on by `__getattr__` is for the indices of what is wrapped; torch's data
    pipes have theirs so. That of Hugging Face's data sets makes another data set.
    """
    own = inspect.getattr_static(data, "batch", None)
    if own is None or not callable(getattr(data, "batch", None)):  # such as a mere number
        return False
    kinds = (kind for kind in type(data).__mro__ if "batch" in vars(kind))
    return next(kinds, type(data)).__module__ != "datasets.arrow_dataset"


def _own_batch(data: Batched, indices: np.ndarray) -> Any:
    try:
        return data.batch(indices)
    except TypeError as error:
        if takes(data.batch, indices) and _ONE_NUMBER not in str(error):
            raise  # a mistake inside it
        raise TypeError(
            f"`batch` of the data set {type(data).__name__} cannot be called with an array of "
            f"indices ({error}); it must return their examples as one batch (inputs, labels); if "
            "it is for something else, give it another name"
        ) from error


def _is_map_style(data: object) -> bool:
    readable = hasattr(data, "__getitem__") or makes_batches(data)
    return readable and hasattr(data, "__len__") and not isinstance(data, IterableDataset)


def _pair(row: Any, of: str = "") -> Any:
    """Return a data set's row if it is a pair."""
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return row
    if isinstance(row, Mapping):
        keys = ", ".join(map(repr, row))
        given = f"a data set must give {of}(input, label) pairs, this one gives dictionaries"
        remedy = "; wrap it in one whose __getitem__ returns the input and the label as a pair"
        # A server need not know what a client's records have.
        raise ExamplesError(f"{given} of {keys}{remedy}", given + remedy)
    many = f" of {len(row)}" if isinstance(row, (tuple, list)) else ""
    raise ExamplesError(
        f"a data set must give {of}(input, label) pairs, this one gives {type(row).__name__}{many}"
    )


def _kinds(values: Sequence[Any]) -> str:
    return " and ".join(sorted({type(value).__name__ for value in values}))


def _kind(values: Any) -> str:
    """Return the type of a batch that is no tensor; collated texts are a list or tuple of str."""
    kind = type(values).__name__
    if isinstance(values, (tuple, list)) and len(values):
        kind += f" of {type(values[0]).__name__}"
    return kind
