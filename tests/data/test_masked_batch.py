"""Batches of the U shape: what counts as token ids and as padding."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import NOTHING, MaskedBatch

CPU = torch.device("cpu")
LABELS = torch.zeros(2, dtype=torch.int64)


def test_padding_at_the_end_of_rows_is_masked() -> None:
    ids = torch.tensor([[3, NOTHING, NOTHING], [NOTHING, NOTHING, NOTHING]])
    batch = MaskedBatch.of((ids, LABELS), CPU)
    assert batch.inputs.tolist() == [[3, 0, 0], [0, 0, 0]]
    assert batch.mask.tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("row", [[3, NOTHING, 2], [NOTHING, 3, 2], [NOTHING, NOTHING, 0]])
def test_padding_before_ids_is_refused(row: list[int]) -> None:
    """A missing value, -1 in pandas' cat.codes, is no id."""
    ids = torch.tensor([[1, 2, NOTHING], row])
    with pytest.raises(ExamplesError, match="have -1, which marks padding, before others; padding"):
        MaskedBatch.of((ids, LABELS), CPU)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_the_largest_number_of_an_unsigned_type_is_an_id(dtype: torch.dtype) -> None:
    """Its bits are those of -1, which marks padding in signed types."""
    largest = torch.iinfo(dtype).max
    batch = MaskedBatch.of((torch.tensor([[largest, 1], [0, largest]], dtype=dtype), LABELS), CPU)
    assert batch.inputs.tolist() == [[largest, 1], [0, largest]]
    assert batch.mask.all()


def test_rows_of_complex_numbers_are_no_ids() -> None:
    rows = torch.randn(2, 6, dtype=torch.complex64)
    batch = MaskedBatch.of((rows, LABELS), CPU)
    assert torch.equal(batch.inputs, rows)
    assert batch.mask.shape == (2, 1)
