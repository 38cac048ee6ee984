"""Flower's tools work with a client's ledger, and get from it what they get from Flower's own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr", minversion="1.35", reason="Flower has accountants from 1.35 on")

# isort: split
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)

from flwr_splitmix.privacy import GaussianNoise, Ledger, Release
from flwr_splitmix.privacy.accountant import ORDERS
from flwr_splitmix.privacy.flower import FlowerAccountant

CONFIG = PrivacyConfig(
    target_delta=1e-5,
    population_size=10,
    neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    sampling_method=SamplingMethod.NO_AMPLIFICATION,
    max_epsilon=5.0,
)
EVENT = GaussianPrivacyEvent(noise_multiplier=6.0, sample_size=10, population_size=10)
RELEASE = Release(noise=GaussianNoise(sigma_s=30, sigma_y=10), patches=64, width=192, ratio=0.5)


def accountant(config: PrivacyConfig = CONFIG) -> FlowerAccountant[PrivacyConfig, PrivacySpent]:
    return FlowerAccountant(config, Ledger("add-remove"), PrivacySpent)


def spend_until_refused(tool: PrivacyAccountant, event: GaussianPrivacyEvent) -> PrivacySpent:
    """Be a tool of Flower's: use all that the protocol has."""
    assert tool.config.max_epsilon is not None
    while not tool.would_exceed(event):
        tool.compose(event)
    assert tool.would_exceed(event, tool.config.max_epsilon)
    assert not tool.would_exceed(event, 2 * tool.config.max_epsilon, count=2)
    spent = tool.get_privacy_spent()
    assert spent.epsilon == tool.get_epsilon(tool.config.target_delta)
    assert spent.num_releases == tool.num_releases
    assert tool.get_privacy_spent(delta=1e-3).delta == 1e-3
    saved = tool.state_dict()
    tool.compose(event, count=3)
    tool.load_state_dict(saved)
    assert tool.get_privacy_spent() == spent
    return spent


def test_both_accountants_grant_a_tool_the_same() -> None:
    mine = spend_until_refused(accountant(), EVENT)
    orders = tuple(float(order) for order in ORDERS[ORDERS > 1.02])
    theirs = spend_until_refused(RdpAccountant(CONFIG, orders), EVENT)
    assert type(mine) is PrivacySpent
    assert mine.num_releases == theirs.num_releases > 5
    assert mine.epsilon == pytest.approx(theirs.epsilon, rel=1e-9)
    assert mine.optimal_order == theirs.optimal_order
    assert mine.accounting_method == theirs.accounting_method
    assert mine.epsilon <= 5.0


def test_delta_agrees_too() -> None:
    orders = tuple(float(order) for order in ORDERS[ORDERS > 1.02])
    mine, theirs = accountant(), RdpAccountant(CONFIG, orders)
    for each in (mine, theirs):
        each.compose(EVENT, count=20)
    assert mine.get_delta(4.0) == pytest.approx(theirs.get_delta(4.0), rel=1e-9)


def test_cut_layer_releases_and_flowers_events_add_up() -> None:
    ledger = Ledger("add-remove")
    tool = FlowerAccountant(CONFIG, ledger, PrivacySpent)
    ledger.charge(RELEASE)
    alone = tool.get_epsilon(1e-5)
    tool.compose(EVENT, count=2)
    assert tool.num_releases == 3
    only = accountant()
    only.compose(EVENT, count=2)
    assert max(alone, only.get_epsilon(1e-5)) < tool.get_epsilon(1e-5)
    assert tool.get_epsilon(1e-5) < alone + only.get_epsilon(1e-5)


def test_no_bound_is_infinite_in_flowers_words() -> None:
    ledger = Ledger("add-remove")
    tool = FlowerAccountant(CONFIG, ledger, PrivacySpent)
    ledger.charge(replace(RELEASE, noise=GaussianNoise(sigma_s=1, sigma_y=1, clip="none")))
    spent = tool.get_privacy_spent()
    assert (spent.epsilon, spent.optimal_order) == (float("inf"), None)
    assert tool.would_exceed(EVENT)
    assert tool.get_delta(100.0) == 1


def test_its_state_is_json_and_belongs_to_its_configuration() -> None:
    tool = accountant()
    tool.compose(EVENT)
    state = json.loads(json.dumps(tool.state_dict(), allow_nan=False))
    again = accountant()
    again.load_state_dict(state)
    assert again.get_privacy_spent() == tool.get_privacy_spent()
    with pytest.raises(ValueError, match="the state belongs to the configuration"):
        accountant(replace(CONFIG, target_delta=1e-6)).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has no ledger"):
        again.load_state_dict({"config": state["config"]})


def test_there_is_no_sampling_to_gain_from() -> None:
    poisson = replace(CONFIG, sampling_method=SamplingMethod.POISSON)
    with pytest.raises(ValueError, match=r"sampling method is poisson; .* no-amplification"):
        accountant(poisson)
    with pytest.raises(ValueError, match="add-or-remove-one in the configuration and replace"):
        FlowerAccountant(CONFIG, Ledger("replace"), PrivacySpent)


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="no max_epsilon"):
        accountant(replace(CONFIG, max_epsilon=None)).would_exceed(EVENT)
    with pytest.raises(ValueError, match="population_size is 9 in the event"):
        accountant().compose(replace(EVENT, sample_size=9, population_size=9))
    with pytest.raises(ValueError, match="times is 0"):
        accountant().compose(EVENT, count=0)
