"""Examples of a data set: pairs of input and label, read by index, and what a data set must be."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
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
from flwr_splitmix.values import takes
from flwr_splitmix.words import listed, with_article

Example = tuple[Tensor, Tensor]

_EXPECTED_INPUTS = (
    "expected one tensor for each example: of a list of numbers torch.tensor makes one; join "
    "several tensors into one, such as with torch.cat, and take it apart in the first "
    "module; of Hugging Face's sets take with_format('torch')"
)

_EXPECTED_LABELS = (
    "expected classes, int64 (batch,), or for several labels rows of 0 and 1, int64 (batch, labels)"
)

_NUMBERS = (
    "; to predict numbers needs a UShapeClient with a loss and scores of your own "
    '(docs/own-app.md, "Other labels in the U shape")'
)

_EXPECTED_FLOATS = (
    "expected numbers, or tensors of one shape, whole or floating, for your own loss; a 0 where "
    "it needs no label"
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
        (input, label) pairs, inputs are not tensors, or labels are not integers (smaller integers
        and bool are converted).
    """
    pair: Any
    if makes_batches(data):
        pair = _pair(_own_batch(data, indices), "batches of ")
        _check_rows(pair, len(indices))
    elif type(data) is TensorDataset:  # a subclass may make its examples otherwise
        pair = _pair(data[torch.as_tensor(indices)], "tensors for ")
    else:
        rows = [_pair(data[int(i)]) for i in indices]
        inputs = _input_batch([row[0] for row in rows])
        pair = inputs, _label_batch([row[1] for row in rows], floats)
    inputs, labels = pair
    if not isinstance(inputs, Tensor):
        raise ExamplesError(f"inputs are {_kind(inputs)}; {_EXPECTED_INPUTS}")
    if floats and isinstance(labels, Tensor) and labels.is_floating_point():
        return inputs, labels
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else _kind(labels)
        numbers = isinstance(labels, Tensor) and labels.is_floating_point()
        hint = _NUMBERS if numbers else ""
        raise ExamplesError(f"labels are {kind}; {_expected_labels(floats)}{hint}")
    return inputs, labels.long()


def _check_rows(pair: Sequence[Any], indices: int) -> None:
    """Raise ExamplesError unless tensors of a data set's own batch have a row for each index."""
    for name, tensor in zip(("inputs", "labels"), pair, strict=True):
        rows = len(tensor) if isinstance(tensor, Tensor) and tensor.dim() else indices
        if rows != indices:
            raise ExamplesError(
                f"its batch(indices) returned {rows} {name} for {indices} indices; it must return "
                "one for each, in their order"
            )


def _input_batch(inputs: list[Any]) -> Any:
    try:
        return default_collate(inputs)
    except RuntimeError as error:
        if any(isinstance(each, Tensor) and each.layout != torch.strided for each in inputs):
            raise ExamplesError(
                "inputs are sparse tensors, of which torch makes no batch: convert them in the "
                "data set with .to_dense(), or give it a method batch(indices) that does"
            ) from error
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
            f"inputs are {_kinds(inputs)}; expected a tensor: convert images in the data set, "
            "such as with torchvision's ToTensor, and other examples in its method batch(indices)"
        ) from error


def _label_batch(labels: list[Any], floats: bool) -> Any:
    try:
        return default_collate(labels)
    except (TypeError, RuntimeError) as error:
        if all(isinstance(label, Tensor) for label in labels):
            raise
        raise ExamplesError(f"labels are {_kinds(labels)}; {_expected_labels(floats)}") from error


def _expected_labels(floats: bool) -> str:
    """Return what labels must be: without a loss of a user's own, or with one."""
    return _EXPECTED_FLOATS if floats else _EXPECTED_LABELS


def check_map_style(name: str, data: Any) -> None:
    """Refuse an argument that is not a map-style data set.

    Raises
    ------
    TypeError
        If it has no length or cannot be indexed, or if it is a mapping of names, or a tuple or
        list of whole arrays, instead of (input, label) pairs; the message begins with the
        argument's name.
    """
    if not _is_map_style(data):
        raise TypeError(
            f"{name} is {type(data).__name__}; expected a map-style data set with a length "
            f"(__len__ and __getitem__){_map_style_of(name, data)}"
        )
    if isinstance(data, Mapping) and 0 not in data:
        raise TypeError(
            f"{name} is {with_article(type(data).__name__)} of "
            f"{listed(map(repr, data), most=4)}; expected (input, label) pairs: of arrays "
            "of inputs and labels make torch.utils.data.TensorDataset(inputs, labels); of several "
            "splits give one"
        )
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (Tensor, np.ndarray)):
        raise TypeError(
            f"{name} is {with_article(type(data).__name__)} of arrays; expected (input, label) "
            "pairs: of arrays of inputs and labels make torch.utils.data.TensorDataset(inputs, "
            "labels)"
        )


def _map_style_of(name: str, data: object) -> str:
    """Return the end of a sentence on how to make a map-style data set of `data`, or ""."""
    if isinstance(data, DataLoader):
        advice = f": give its data set, {name}=loader.dataset"
        if data.collate_fn is default_collate:
            return advice
        return f"{advice}, with a method batch(indices) that does what the collate_fn did"
    streamed = isinstance(data, Iterable) and not isinstance(data, type)
    if isinstance(data, IterableDataset) or (streamed and not hasattr(data, "__getitem__")):
        return f": if it fits into memory, {name}=list(...) of it"
    return ""


def makes_batches(data: object) -> TypeGuard[Batched]:
    """Return whether a data set's class, or it itself, has a method that makes whole batches.

    One that is only passed on by `__getattr__` is for the indices of what is wrapped; torch's data
    pipes have theirs so. That of Hugging Face's data sets makes another data set.
    """
    attribute = inspect.getattr_static(data, "batch", None)
    if attribute is None or not callable(getattr(data, "batch", None)):  # such as a mere number
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
        problem = f"a data set must give {of}(input, label) pairs, this one gives dictionaries"
        remedy = "; wrap it in one whose __getitem__ returns the input and the label as a pair"
        # A server need not know what a client's records have.
        raise ExamplesError(f"{problem} of {keys}{remedy}", problem + remedy)
    many, remedy = "", ""
    if isinstance(row, (tuple, list)):
        many = f" of {len(row)}"
        if len(row) > 2:
            remedy = "; wrap it in one that gives the input and the label alone, as a pair"
    raise ExamplesError(
        f"a data set must give {of}(input, label) pairs, this one gives {type(row).__name__}{many}"
        f"{remedy}"
    )


def _kinds(values: Sequence[Any]) -> str:
    return " and ".join(sorted({type(value).__name__ for value in values}))


def _kind(values: Any) -> str:
    """Return the type of a batch that is not a tensor; collated texts are a list or tuple."""
    kind = type(values).__name__
    if isinstance(values, (tuple, list)) and len(values):
        kind += f" of {type(values[0]).__name__}"
    return kind
