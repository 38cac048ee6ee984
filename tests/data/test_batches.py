"""The examples that a client draws; the number of draws is all there is to remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from flwr_splitmix.data import batches as batches_module
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example
from flwr_splitmix.seeding import derive_seed, frozen_generator
from flwr_splitmix.testing.toy import Examples


def numbered(n: int) -> Dataset[Example]:
    """Make examples (i, i modulo 3), so that a batch tells what was drawn."""
    return Examples(torch.arange(n).float(), torch.arange(n) % 3)


def drawn(batches: Batches, times: int, seed: int = 0, client: int = 0) -> list[list[int]]:
    return [batches.next_batch(seed, client)[0].int().tolist() for _ in range(times)]


def test_an_epoch_has_each_example_at_most_once_and_drops_the_short_last_batch() -> None:
    batches = Batches(numbered(11), 4)
    assert batches.per_epoch == 2
    first, second = drawn(batches, 2)
    assert len(first) == len(second) == 4
    assert len({*first, *second}) == 8


@pytest.mark.parametrize(("examples", "arrays"), [(11, 4), (3, 6), (4, 6)])
@pytest.mark.parametrize("first", [0, 1])
def test_the_records_of_later_batches_are_known_before_they_are_drawn(
    examples: int, arrays: int, first: int
) -> None:
    """Those of one pass together, and what is drawn with replacement batch by batch."""
    batches = Batches(numbered(examples), 4)
    drawn(batches, first, seed=5, client=2)
    record_arrays = [records.tolist() for records in batches.records(5, 2, first, first + 6)]
    assert len(record_arrays) == arrays - (examples == 11 and first == 0)
    flat = [record for batch in drawn(batches, 6, seed=5, client=2) for record in batch]
    assert [record for records in record_arrays for record in records] == flat
    assert all(len(set(records)) == len(records) for records in record_arrays) or examples < 4


def test_a_batch_that_cannot_be_read_is_not_the_last_batch() -> None:
    """Whoever is charged for the last batch must be in it."""

    class Unreadable(Examples):
        def batch(self, indices: np.ndarray) -> Example:
            if unreadable.intersection(indices.tolist()):
                raise OSError("no such file")
            return super().batch(indices)

    unreadable: set[int] = set()
    batches = Batches(Unreadable(torch.arange(12).float(), torch.arange(12) % 3), 4)
    inputs, _ = batches.next_batch(0, 0)
    unreadable = set(range(12)) - set(inputs.int().tolist())
    with pytest.raises(OSError, match="no such file"):
        batches.next_batch(0, 0)
    assert batches.indices.tolist() == inputs.int().tolist()
    assert batches.drawn == 2  # the next one asked for is another


def test_all_examples_are_used_in_the_long_run() -> None:
    assert {i for batch in drawn(Batches(numbered(11), 4), 20) for i in batch} == set(range(11))


def test_it_starts_over_with_another_order() -> None:
    epochs = drawn(Batches(numbered(8), 8), 3)
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_less_than_a_batch_is_drawn_with_replacement() -> None:
    batches = Batches(numbered(3), 8)
    assert batches.per_epoch == 0
    indices = drawn(batches, 100)
    assert all(len(batch) == 8 for batch in indices)
    share = np.bincount([i for batch in indices for i in batch]) / 800
    assert share == pytest.approx([1 / 3] * 3, abs=0.07)
    assert indices[0] != indices[1]


@pytest.mark.parametrize("examples", [11, 3])
def test_the_position_is_the_whole_state(examples: int) -> None:
    whole, resumed = Batches(numbered(examples), 4), Batches(numbered(examples), 4)
    expected = drawn(whole, 7)
    resumed.drawn = 3
    assert drawn(resumed, 4) == expected[3:]
    assert resumed.drawn == whole.drawn == 7


def test_an_epoch_is_shuffled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled for every batch, a million examples would take 7 minutes an epoch."""
    seeds: list[int] = []

    def generator(seed: int, purpose: str, *place: int) -> np.random.RandomState:
        seeds.append(derive_seed(seed, purpose, *place))
        return frozen_generator(seeds[-1])

    monkeypatch.setattr(batches_module, "order_generator", generator)
    batches = Batches(numbered(40), 4)
    drawn(batches, 20)
    assert len(seeds) == 2
    drawn(batches, 1, seed=1)
    drawn(batches, 1, client=1)
    assert len(set(seeds)) == len(seeds) == 4


def test_who_changes_a_batchs_indices_changes_no_later_batch() -> None:
    class Sorting(Examples):
        def batch(self, indices: np.ndarray) -> Example:
            batch = super().batch(indices)
            indices[:] = -1
            return batch

    sorting = Batches(Sorting(torch.arange(12).float(), torch.arange(12) % 3), 4)
    expected = drawn(Batches(numbered(12), 4), 6)
    assert drawn(sorting, 3) == expected[:3]
    sorting.drawn = 0
    assert drawn(sorting, 6) == expected


def test_clients_and_seeds_draw_differently() -> None:
    orders = {
        tuple(drawn(Batches(numbered(20), 20), 1, seed, client)[0])
        for seed in range(3)
        for client in range(3)
    }
    assert len(orders) == 9


def test_the_order_is_the_same_on_every_machine() -> None:
    assert drawn(Batches(numbered(6), 3), 2, seed=5, client=1) == [[0, 3, 2], [1, 4, 5]]


def test_an_impossible_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 0; it must be at least 1"):
        Batches(numbered(4), 0)


@pytest.mark.parametrize("size", ["50", 2.5, True, None])
def test_a_batch_size_that_is_no_integer_is_refused(size: Any) -> None:
    with pytest.raises(TypeError, match=r"batch_size is .*; it must be an integer of at least 1"):
        Batches(numbered(4), size)


def test_numpys_integers_are_batch_sizes() -> None:
    assert Batches(numbered(4), np.int64(2)).size == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("examples", [11, 3])
def test_with_a_key_of_their_own_neither_batches_nor_their_records_depend_on_the_runs_seed(
    examples: int,
) -> None:
    """Records of earlier attempts are charged by them, so that they must be those of batches."""
    orders = []
    for key, seed in [(b"k" * 32, 5), (b"k" * 32, 6), (b"l" * 32, 5), (None, 5)]:
        batches = Batches(numbered(examples), 4)
        batches.order_key = key
        expected = [record for records in batches.records(seed, 2, 0, 6) for record in records]
        orders.append([record for batch in drawn(batches, 6, seed, 2) for record in batch])
        assert expected == orders[-1]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
