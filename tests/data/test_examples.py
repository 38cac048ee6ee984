"""Data sets that give examples, one at a time or in batches, and errors about others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import datasets as hugging_face
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, MapDataPipe, TensorDataset

from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example, check_map_style, fetch
from flwr_splitmix.seeding import seeded_draws


class Pairs(Dataset[Example]):
    """A plain map-style data set: one example at a time."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Example:
        return torch.tensor([float(index)]), torch.tensor(index, dtype=torch.int32)


class AtOnce(Pairs):
    def batch(self, indices: np.ndarray) -> Example:
        return torch.as_tensor(indices).float()[:, None], torch.as_tensor(indices)


TENSORS = TensorDataset(torch.arange(5).float(), torch.arange(5, dtype=torch.int16))


@pytest.mark.parametrize("data", [Pairs(), AtOnce(), TENSORS], ids=["one", "batch", "tensors"])
def test_every_kind_of_data_set_gives_the_examples_asked_for(data: Dataset[Example]) -> None:
    inputs, labels = fetch(data, np.array([4, 0, 4]))
    assert inputs.flatten().tolist() == [4, 0, 4]
    assert labels.dtype == torch.int64


def test_a_tensor_data_set_with_examples_of_its_own_gives_one_at_a_time() -> None:
    """Asked for a batch, it would take that for one example."""

    class Reversed(TensorDataset):
        def __getitem__(self, index: Any) -> Example:
            inputs, label = (tensor[index] for tensor in self.tensors)
            return inputs.flip(0), label

    data: Any = Reversed(torch.arange(6).view(3, 2), torch.arange(3))
    inputs, _ = fetch(data, np.array([0, 2]))
    assert inputs.tolist() == [[1, 0], [5, 4]]


def test_a_data_set_without_labels_is_refused() -> None:
    images: list[torch.Tensor] = [torch.zeros(2)]
    with pytest.raises(TypeError, match=r"must give \(input, label\) pairs, this one gives Tensor"):
        fetch(images, np.array([0]))


class Stream(IterableDataset[Example]):
    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Example]:
        return iter(())


@pytest.mark.parametrize("data", [None, iter(()), {1, 2}, Dataset(), Stream()])
def test_data_that_cannot_be_indexed_are_refused(data: Any) -> None:
    message = f"data is {type(data).__name__}; expected a map-style data set with a length"
    with pytest.raises(TypeError, match=message):
        Batches(data, 2)


X = torch.zeros(4, 2)
ROWS = {
    "float": (
        [(X[0], 1.0)] * 4,
        "labels are torch.float64; expected classes, int64 .*; to predict numbers needs a UShape",
    ),
    "one-hot": (TensorDataset(X, torch.eye(4)), "labels are torch.float32; expected classes"),
    "complex": (TensorDataset(X, X.to(torch.complex64)), "labels are torch.complex64; expected"),
    "text": ([(X[0], "cat")] * 4, r"labels are (tuple|list) of str; expected classes, int64"),
    "no label": ([(X[0], 1), (X[0], None)], "labels are NoneType and int; expected classes"),
    "a wide label": ([(X[0], np.uint64(1))] * 4, "labels are (uint64|torch.uint64); expected"),
    "inputs of text": ([("a cat", 1)] * 4, r"inputs are (tuple|list) of str; expected one tensor"),
    "inputs by name": ([({"pixels": X[0]}, 1)] * 4, "inputs are dict; expected one tensor"),
    "one tensor": (TensorDataset(X), r"tensors for \(input, label\) pairs, .* gives tuple of 1"),
    "three tensors": (TensorDataset(X, X, X), r"\(input, label\) pairs, this one gives tuple of 3"),
    "triples": (
        [(X[0], 1, 2)] * 4,
        r"must give \(input, label\) pairs, .* gives tuple of 3; wrap it in one that gives",
    ),
    "sparse inputs": ([(X[0].to_sparse(), 1)] * 4, r"inputs are sparse tensors, .* \.to_dense\(\)"),
    "a later triple": ([(X[0], 1), (X[0], 1, 2)], r"\(input, label\) pairs, .* gives tuple of 3"),
    "rows by name": (
        [{"pixels": X[0], "label": 1}] * 4,
        "gives dictionaries of 'pixels', 'label'; wrap",
    ),
    "a Hugging Face data set": (
        hugging_face.Dataset.from_dict({"image": [[0.0]] * 4, "label": [1] * 4}),
        "gives dictionaries of 'image', 'label'; wrap it in one whose __getitem__",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_input_with_a_class_is_refused(name: str) -> None:
    data, message = ROWS[name]
    with pytest.raises(TypeError, match=message):
        fetch(data, np.array([0, 1]))


def test_labels_for_a_loss_of_ones_own_may_be_floating_and_the_error_says_so() -> None:
    """It asked for classes, which such a client need not have."""
    with pytest.raises(TypeError, match=r"of one shape, whole or floating, for your own loss; a 0"):
        fetch([(X[0], None)] * 2, np.array([0, 1]), floats=True)


@pytest.mark.parametrize("label", [True, 1, np.uint8(1), torch.tensor(1, dtype=torch.int16)])
def test_labels_of_every_integer_type_are_classes(label: Any) -> None:
    labels = fetch([(X[0], label)] * 2, np.array([0, 1]))[1]
    assert labels.dtype == torch.int64
    assert labels.tolist() == [1, 1]


@pytest.mark.parametrize("data", [{"x": np.ones((4, 2)), "y": np.arange(4)}, {"train": []}])
def test_a_mapping_is_no_data_set(data: Any) -> None:
    with pytest.raises(TypeError, match=r"data is a dict of '\w+'.*; expected \(input, label\)"):
        check_map_style("data", data)


class Augmented(Dataset[Example]):
    """Draws from the generators of Python, NumPy and torch."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Example:
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor([float(index), *drawn]), torch.tensor(0)


class AugmentedBatches(Augmented):
    """The same, as whole batches."""

    def batch(self, indices: np.ndarray) -> Example:
        rows = [self[int(index)] for index in indices]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def test_a_method_batch_that_is_for_something_else_is_named() -> None:
    class Cut(Augmented):
        def batch(self, size: int) -> list[range]:
            return [range(size)]

    with pytest.raises(TypeError, match=r"`batch` of the data set Cut .* give it another name"):
        fetch(Cut(), np.arange(4))


def test_a_batch_method_counts_in_a_module_of_any_name() -> None:
    """Taken for Hugging Face's, a project's own `datasets.py` would silently give rows."""

    class Own(Augmented):
        def batch(self, indices: np.ndarray) -> Example:
            return torch.full((len(indices), 1), 7.0), torch.zeros(len(indices), dtype=torch.int64)

    for module in ("datasets", "datasets.images", "torch_data"):
        Own.__module__ = module
        assert fetch(Own(), np.arange(3))[0].tolist() == [[7.0]] * 3


class _Derived(hugging_face.Dataset):  # type: ignore[misc]
    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)
        return torch.tensor(row["image"]), row["label"]


class _Passing(Dataset[Example]):
    """Passes on what it has not itself."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getitem__(self, index: int) -> Example:
        row = self.wrapped[len(self) - 1 - index]
        return torch.tensor(row["image"]), row["label"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["wrapped"], name)


class _Pipe(MapDataPipe):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Example:
        return torch.tensor([float(index)]), torch.tensor(index)


def test_a_batch_method_that_is_not_ones_own_is_left_alone() -> None:
    rows = {"image": [[float(index)] for index in range(4)], "label": list(range(4))}
    dataset = hugging_face.Dataset.from_dict(rows)
    derived = _Derived(dataset.data, info=dataset.info)
    for data, expected in ((derived, [0, 2]), (_Passing(dataset), [3, 1]), (_Pipe(), [0, 2])):
        inputs, labels = fetch(data, np.array([0, 2]))
        assert labels.tolist() == expected, type(data)
        assert inputs.flatten().tolist() == expected


def test_a_method_batch_of_other_arguments_is_named() -> None:
    class Cut(Augmented):
        def batch(self, start: int, stop: int) -> range:
            return range(start, stop)

    with pytest.raises(TypeError, match=r"of the data set Cut cannot .* 'stop'\); .* another name"):
        fetch(Cut(), np.arange(4))


def test_a_mistake_inside_a_batch_method_is_not_blamed_on_its_arguments() -> None:
    class Mistaken(Augmented):
        def batch(self, indices: np.ndarray) -> Example:
            return torch.ones(len(indices)) + None, torch.zeros(4)  # type: ignore[operator]

    with pytest.raises(TypeError, match=r"^unsupported operand type"):
        fetch(Mistaken(), np.arange(4))


@pytest.mark.parametrize("kind", [Augmented, AugmentedBatches])
def test_augmentations_repeat_with_the_seed_and_leave_the_callers_generators_alone(
    kind: type[Augmented],
) -> None:
    def drawn(seed: int) -> Tensor:
        with seeded_draws(torch.device("cpu"), seed):
            return fetch(kind(), np.arange(4))[0]

    random.seed(0)
    np.random.seed(0)
    expected = [random.random(), np.random.rand()]
    random.seed(0)
    np.random.seed(0)
    first = drawn(1)
    assert [random.random(), np.random.rand()] == expected
    assert torch.equal(drawn(1), first)
    assert not torch.isclose(drawn(2)[:, 1:], first[:, 1:]).any()
    assert len(set(first[:, 1:].flatten().tolist())) == 12


def test_examples_that_are_no_tensors_are_named_with_the_remedy() -> None:
    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return object(), 1

    with pytest.raises(TypeError, match=r"inputs are object; expected a tensor: .* ToTensor"):
        fetch(Images(), np.arange(2))


def test_inputs_of_different_shapes_are_named_with_the_remedy() -> None:
    data: Any = [(torch.ones(3, 8, 8), 0), (torch.ones(3, 9, 8), 1)]
    with pytest.raises(TypeError, match=r"such as \(3, 8, 8\) and \(3, 9, 8\): bring them to one"):
        fetch(data, np.arange(2))


def test_a_batch_of_another_length_is_named() -> None:
    """The server would otherwise blame an upload of another shape."""

    class Short(Augmented):
        def batch(self, indices: np.ndarray) -> Example:
            return torch.ones(len(indices) - 1, 1), torch.zeros(len(indices), dtype=torch.int64)

    with pytest.raises(TypeError, match=r"its batch\(indices\) returned 3 inputs for 4 indices"):
        fetch(Short(), np.arange(4))
