"""Releases of a Flower strategy's accountant are kept, so that a resume grants no second budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("flwr", minversion="1.35", reason="Flower has accountants from 1.35 on")

# isort: split
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import strategy as flower

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


class Wrapping(flower.FedAvg):
    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.strategy = strategy


def test_flowers_accountant_goes_on_where_it_was() -> None:
    """If it began anew after a resume, it would grant its budget twice."""
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
        LowerAggregator(Wrapping(accounted())).restore(LowerAggregator(Wrapping(None)).state())
