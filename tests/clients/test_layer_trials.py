"""Trials of a lower segment's layers before a round; batches of one example and batch norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from flwr_splitmix.clients import PrivacyBudget, SplitClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.strategies import PSL
from tests.clients.own_segments import DATA, ORDER, Lower


class Copied(Lower):
    """Keeps a record of its copies; some cannot be made."""

    def __init__(self, copies: list[bool], possible: bool) -> None:
        super().__init__()
        self.copies, self.possible = copies, possible

    def __deepcopy__(self, memo: Any) -> Lower:
        self.copies.append(self.possible)
        if not self.possible:
            raise RuntimeError("it has no copies")
        return Lower()


@pytest.mark.parametrize(("possible", "times"), [(True, 1), (False, 2)])
def test_only_a_trial_of_layers_that_was_incomplete_is_made_again(
    possible: bool, times: int
) -> None:
    """Of an incomplete one, trained weights may show more."""
    copies: list[bool] = []
    client = SplitClient(Copied(copies, possible), DATA, batch_size=4, device="cpu")
    for server_round in (1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert copies == [possible] * times


def test_a_client_says_once_that_its_trial_is_incomplete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = SplitClient(Copied([], possible=False), DATA, batch_size=4, device="cpu")
    for server_round in (1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert [r.getMessage() for r in caplog.records if "incomplete" in r.getMessage()] == [
        "the trial of whether Copied mixes the examples of a batch is incomplete, and may miss "
        "that it does: it has no copies"
    ]


def test_a_client_with_a_budget_looks_for_layers_across_the_batch_in_every_round() -> None:
    """Its server chooses the weights of each."""
    copies: list[bool] = []
    budget = PrivacyBudget(max_epsilon=50.0)
    client = SplitClient(
        Copied(copies, possible=True), DATA, batch_size=4, device="cpu", privacy=budget
    )
    for server_round in (1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert copies == [True, True]


class Counted(Lower):
    """Counts its calls, its copies' included, where a copy's state has no part in it."""

    calls: ClassVar[list[int]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.append(len(inputs))
        return super().forward(inputs)


def test_a_trial_is_not_repeated_before_a_weight_an_input_or_an_attribute_changes() -> None:
    segment, data = Counted(), TensorDataset(*map(torch.clone, DATA.tensors))
    budget = PrivacyBudget(max_epsilon=50.0)
    client = SplitClient(segment, data, batch_size=4, device="cpu", privacy=budget)

    def tries() -> bool:
        Counted.calls.clear()
        client.attach(ORDER, None)
        assert Counted.calls[0] == 1  # of which the description is made
        return 4 in Counted.calls

    assert tries()
    assert not tries()
    weight = next(segment.parameters())
    with torch.no_grad():
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
    assert tries()
    assert not tries()
    data.tensors[0][1] += 1
    assert tries()
    assert not tries()
    segment.rounds = 1  # type: ignore[assignment]
    assert tries()
    assert not tries()


def test_a_batch_of_one_example_before_batch_norm_is_refused_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A traceback would be 45 lines for each client."""
    client = SplitClient(Lower(nn.BatchNorm1d(5)), DATA, batch_size=1, device="cpu")
    strategy = PSL(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), num_classes=3, device="cpu")
    with pytest.raises(LinkError, match="client 0: batch normalisation in the lower segment needs"):
        strategy.fit([client], 1)
    assert "client 0 failed in step: batch normalisation in the lower segment" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_a_last_test_batch_of_one_example_before_batch_norm_is_named() -> None:
    segment = Lower(nn.BatchNorm1d(5, track_running_stats=False))
    client = SplitClient(segment, DATA, device="cpu", test_data=Subset(DATA, [0]))
    client.attach(ORDER, None)
    with pytest.raises(ValueError, match="normalisation in the lower segment needs more than one"):
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 1})
