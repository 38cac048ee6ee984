"""What is kept of a Flower strategy: its accountant's releases above all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import strategy as flower
from torch import nn

from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator

CONFIG = PrivacyConfig(
    1e-5, 2, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, max_epsilon=50
)


def accounted(releases: int = 0, max_epsilon: float = 50) -> Any:
    accountant = RdpAccountant(replace(CONFIG, max_epsilon=max_epsilon))
    if releases:
        accountant.compose(GaussianPrivacyEvent(2.0, 2, 2), releases)
    return flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(), 2.0, 1.0, 2, accountant=accountant
    )


class Mine(flower.FedAvg):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part


def test_flowers_accountant_goes_on_where_it_was() -> None:
    """It began anew after a resume, and so granted its budget twice."""
    first, second = accounted(releases=3), accounted()
    LowerAggregator(second).restore(LowerAggregator(first).state())
    assert second.privacy_spent() == first.privacy_spent()
    assert second.privacy_spent().num_releases == 3


def test_an_accountant_of_another_budget_or_one_that_is_new_is_refused() -> None:
    state = LowerAggregator(accounted(releases=3)).state()
    with pytest.raises(AggregatorError, match=r"FixedClipping.accountant does not take.*resume"):
        LowerAggregator(accounted(max_epsilon=60)).restore(state)
    plain = LowerAggregator(
        flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 2.0, 1.0, 2)
    )
    with pytest.raises(AggregatorError, match=r"state of .*FixedClipping.accountant, which is"):
        plain.restore(state)
    with pytest.raises(AggregatorError, match=r"no state of .*FixedClipping.accountant; resume"):
        LowerAggregator(accounted()).restore(plain.state())


def test_an_accountant_within_another_strategy_is_refused_too_if_it_is_new() -> None:
    with pytest.raises(AggregatorError, match=r"no state of .*FixedClipping.accountant"):
        LowerAggregator(Mine(accounted())).restore(LowerAggregator(Mine(None)).state())


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
    (told,) = [record.getMessage() for record in caplog.records]
    assert "state of Mine.part" in told
    aggregator.restore(state)
