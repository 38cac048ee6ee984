"""Tensors survive records."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flwr_splitmix.links.arrays import to_arrays, to_tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_tensors_keep_shape_dtype_and_values(dtype: torch.dtype) -> None:
    tensors = {
        "block.weight": torch.randn(3, 2).to(dtype),
        "count": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 4, dtype=dtype),
    }
    restored = to_tensors(to_arrays(tensors))
    assert restored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert restored[name].dtype == dtype
        assert torch.equal(restored[name], tensor)


def test_tensors_from_a_record_own_their_memory() -> None:
    record = to_arrays({"w": torch.zeros(2)})
    to_tensors(record)["w"].add_(1)
    assert not to_tensors(record)["w"].any()


@pytest.fixture
def busy_collector() -> Iterator[None]:
    """Collect garbage all the time, with a callback, so that threads may switch there."""

    def look_on(phase: str, info: dict[str, int]) -> None:
        sum(range(5))

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(3, 1_000_000, 1_000_000)
    gc.callbacks.append(look_on)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.callbacks.remove(look_on)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("busy_collector")
def test_arrays_can_be_read_in_several_threads() -> None:
    """CPython 3.11 fails with "AST constructor recursion depth mismatch" if two threads parse."""
    record = to_arrays({str(number): torch.zeros(2) for number in range(5)})
    with ThreadPoolExecutor(4) as threads:
        for tensors in threads.map(lambda _: to_tensors(record), range(200)):
            assert tensors.keys() == record.keys()
