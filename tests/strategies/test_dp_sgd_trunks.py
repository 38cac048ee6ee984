"""A trunk under DP-SGD answers each example by itself: clipping bounds nothing else."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.hiding import DPSGD
from flwr_splitmix.strategies import DPSGDSL, DPForwardSL, USplitSL
from flwr_splitmix.testing.toy_texts import TextToy, text_toy


class Behind(nn.Module):
    """The toy's trunk, and a layer across the batch behind it, opened by a gate."""

    def __init__(self, toy: TextToy, layer: nn.Module, gate: float = 1.0) -> None:
        super().__init__()
        self.inner, self.layer = toy.server(), layer
        self.gate = nn.Parameter(torch.tensor(gate, dtype=torch.float64))

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        output = self.inner(hidden, mask)
        return output + self.gate * self.layer(output)


class Normed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False, track_running_stats=False)

    def forward(self, hidden: Tensor) -> Any:
        return self.norm(hidden.mT).mT


class Unnamed(nn.Module):
    def forward(self, hidden: Tensor) -> Any:
        return F.batch_norm(hidden.mT, None, None, training=True).mT


class Within(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean((1, 2), keepdim=True)


TOY = text_toy("DPSGDSL", clients=2)


def test_a_trunk_with_batch_norm_is_refused_before_anything_is_sent() -> None:
    """The clipped sum could move by 11.2 clip norms with one example, and is charged for 2."""
    strategy = DPSGDSL(Behind(TOY, Normed(TOY.width)), device="cpu", steps_per_round=1)
    clients = TOY.clients_for(strategy)
    with pytest.raises(ValueError, match=r"the trunk has BatchNorm, .* no epsilon: take a trunk"):
        strategy.fit(clients, 1)
    assert [client.batches.drawn for client in clients] == [0, 0]


@pytest.mark.parametrize("gate", [1.0, 0.0])
def test_a_trunk_that_mixes_examples_by_no_known_name_is_refused(gate: float) -> None:
    """A mixing layer of the trunk would otherwise be charged as none."""
    strategy = DPSGDSL(Behind(TOY, Unnamed(), gate), device="cpu", steps_per_round=1)
    clients = TOY.clients_for(strategy)
    before = [deepcopy(client.head.state_dict()) for client in clients]
    with pytest.raises(ValueError, match="the trunk has a layer across the batch, by which"):
        strategy.fit(clients, 1)
    for client, weights in zip(clients, before, strict=True):
        assert all(torch.equal(client.head.state_dict()[n], w) for n, w in weights.items())


def test_clients_with_dp_sgd_have_such_a_trunk_refused_by_any_strategy() -> None:
    toy = TextToy(hiding=DPSGD)
    strategy = USplitSL(Behind(toy, Normed(toy.width)), device="cpu", steps_per_round=1)
    with pytest.raises(ValueError, match="the trunk has BatchNorm"):
        strategy.fit(toy.clients_for(strategy), 1)


def test_a_trunk_that_keeps_examples_apart_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    strategy = DPSGDSL(Behind(TOY, Within()), device="cpu", steps_per_round=2)
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        strategy.fit(TOY.clients_for(strategy), 2)
    assert "mixes the examples" not in caplog.text
    assert strategy.rows[-1]["train_epsilon"] > 0


def test_an_epsilon_of_messages_rests_on_no_trunk() -> None:
    toy = text_toy("DPForwardSL", clients=1)
    strategy = DPForwardSL(Behind(toy, Unnamed()), device="cpu", steps_per_round=1)
    strategy.fit(toy.clients_for(strategy), 1)
    assert strategy.rows[-1]["train_epsilon"] > 0
