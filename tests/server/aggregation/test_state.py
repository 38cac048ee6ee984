"""What is kept of a Flower strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower
from torch import nn

from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator


class Mine(flower.FedAvg):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part


def test_a_module_is_kept() -> None:
    first, second = Mine(nn.Linear(2, 3)), Mine(nn.Linear(2, 3))
    LowerAggregator(second).restore(LowerAggregator(first).state())
    assert torch.equal(second.part.weight, first.part.weight)
    with pytest.raises(AggregatorError, match=r"Mine.part does not take"):
        LowerAggregator(Mine(nn.Linear(3, 3))).restore(LowerAggregator(first).state())


@pytest.mark.parametrize("part", [[np.ones(1), "text"], {"a": np.ones(1), "b": "text"}])
def test_arrays_among_other_things_are_left_to_the_strategy(part: Any) -> None:
    assert LowerAggregator(Mine(part)).state() == LowerAggregator(Mine(None)).state()


def test_a_state_that_no_checkpoint_can_hold_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    weight.grad = torch.ones(1)
    optimizer.step()
    aggregator = LowerAggregator(Mine(optimizer))
    state = aggregator.state()
    assert aggregator.state().keys() == state.keys()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "state of Mine.part" in warning
    aggregator.restore(state)
