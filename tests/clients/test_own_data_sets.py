"""Data sets of somebody's own: what works, and what is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.data.examples import Example
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import PSL
from tests.clients.own_segments import DATA, INPUTS, LABELS, Lower, smashed_of


class Padded(TensorDataset):
    """Pads a batch to its longest series only."""

    def batch(self, indices: np.ndarray) -> Example:
        inputs, labels = self[torch.from_numpy(indices)]
        return inputs[:, : len(indices)], labels


def test_smashed_data_of_another_length_than_described_are_refused_with_the_remedy() -> None:
    """The server's message spoke of shares and tokens."""
    data: Any = Padded(torch.randn(8, 9, 5), LABELS)
    message = r"are \(batch, 4, 3\), those of its first example.* \(batch, 1, 3\): .* by padding"
    with pytest.raises(ClientError, match=message):
        smashed_of(nn.Linear(5, 3), data)


class Sized(Dataset[Example]):
    """A data set with a number named batch."""

    batch = 16

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Example:
        return INPUTS[index], LABELS[index]


def test_a_data_set_may_have_a_number_named_batch() -> None:
    described, smashed = smashed_of(Lower(), Sized())
    assert (described["num-examples"], len(smashed)) == (8, 4)


class Streamed(IterableDataset[Example]):
    def __iter__(self) -> Any:
        return iter(DATA)


@pytest.mark.parametrize("name", ["test_data", "benchmark_data"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(DATA), r" is DataLoader; expected a map-style .* \w+=loader.dataset$"),
        (
            DataLoader(DATA, collate_fn=list),
            r" is DataLoader; .* \w+=loader.dataset, with a method batch\(indices\)",
        ),
        (
            (x for x in DATA),
            r" is generator; expected .* a length .* \w+=list\(\.\.\.\) of it",
        ),
        (Streamed(), r" is Streamed; expected a map-style data set .* \w+=list\(\.\.\.\) of it"),
        ((INPUTS, LABELS), r" is a tuple of arrays; .*TensorDataset\(inputs, labels\)"),
        ([INPUTS.numpy(), np.asarray(LABELS)], r" is a list of arrays; .*TensorDataset"),
    ],
)
def test_test_sets_are_checked_at_once_like_training_data(
    name: str, data: Any, message: str
) -> None:
    options: dict[str, Any] = {name: data}
    with pytest.raises(TypeError, match=f"^{name}{message}"):
        SplitClient(Lower(), DATA, **options)
    options = {name: list(zip(INPUTS, LABELS, strict=True))}
    assert SplitClient(Lower(), DATA, **options).tests  # a list of pairs is a data set


@pytest.mark.parametrize(
    ("rows", "log_line", "message"),
    [
        (
            [{"pixels": INPUTS[0], "label": 1}] * 8,
            "dictionaries of 'pixels', 'label'; wrap it",
            "this one gives dictionaries; wrap it in one whose",
        ),
        ([(INPUTS[0], 1, 2)] * 8, "", "this one gives tuple of 3"),
    ],
    ids=["dictionaries", "triples"],
)
def test_rows_that_are_no_pairs_are_one_line_for_each_client(
    rows: Any, log_line: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not an error and a traceback for each client."""
    client = SplitClient(Lower(), rows, batch_size=4, device="cpu")
    strategy = PSL(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), num_classes=3, device="cpu")
    with pytest.raises(LinkError, match=message) as refused:
        strategy.fit([client], num_rounds=1)
    assert "pixels" not in str(refused.value)  # a server need not know what records have
    assert log_line in caplog.text
    assert "Traceback" not in caplog.text
