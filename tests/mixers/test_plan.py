"""Mixing groups, and the shares that clients get of a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.mixers import FullShare, NoMixing, PatchCutMix, PatchShare, Plan, SmashedShape

SHAPE = SmashedShape(batch=4, patches=16, width=8)


def plan_of(n: int, seed: int = 0, **options: Any) -> Plan:
    return PatchCutMix(**options).plan(range(n), SHAPE, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("n", "k", "sizes"),
    [
        (10, 2, [2, 2, 2, 2, 2]),
        (10, 3, [3, 3, 3, 1]),
        (10, 4, [4, 4, 2]),
        (5, 4, [4, 1]),
        (5, 2, [2, 2, 1]),
        (3, 3, [3]),
        (1, 2, [1]),
    ],
)
def test_leftovers(n: int, k: int, sizes: list[int]) -> None:
    plan = plan_of(n, k=k)
    (groups,) = plan.passes
    assert [len(group.members) for group in groups] == sizes
    clients = [m.client for group in groups for m in group.members]
    assert sorted(clients) == list(range(n))
    alone = [m for group in groups if len(group.members) == 1 for m in group.members]
    assert [m.share for m in alone] == [FullShare()] * len(alone)
    assert plan.unmixed == tuple(m.client for m in alone)
    assert all(isinstance(m.share, PatchShare) for g in groups for m in g.members if m not in alone)


@pytest.mark.parametrize(
    ("n", "k", "sizes"),
    [(10, 3, [3, 3, 3]), (10, 4, [4, 4, 2]), (5, 2, [2, 2]), (4, 2, [2, 2]), (1, 2, [])],
)
@pytest.mark.parametrize("k_times", [False, True])
def test_a_client_left_over_alone_can_be_skipped(
    n: int, k: int, sizes: list[int], k_times: bool
) -> None:
    plan = plan_of(n, k=k, leftover="skip", k_times=k_times)
    assert [len(group.members) for group in plan.passes[0]] == sizes
    assert plan.unmixed == ()
    assert len(plan.clients) == sum(sizes)


def test_everyone_is_skipped_equally_often() -> None:
    skipped = Counter(
        client
        for seed in range(1500)
        for client in {0, 1, 2} - plan_of(3, seed, leftover="skip").clients
    )
    assert all(abs(skipped[client] / 1500 - 1 / 3) < 0.05 for client in range(3))


def test_everyone_is_left_over_equally_often() -> None:
    alone = Counter(plan_of(3, seed).unmixed[0] for seed in range(1500))
    assert all(abs(alone[client] / 1500 - 1 / 3) < 0.05 for client in range(3))


def test_a_client_is_told_of_itself_only() -> None:
    plan = plan_of(6, k=3, k_times=True)
    for client in range(6):
        shares = plan.for_node(client)
        assert len(shares) == 3
        for share in shares:
            assert share is not None
            assert share.keys() == {
                "share", "lam", "learns", "patches", "prefix", "broadcast",
                "seed", "start", "stop", "per_sample",
            }  # fmt: skip
            assert all(type(value) in (bool, int, float, str) for value in share.values())
            assert share["lam"] == (share["stop"] - share["start"]) / 16  # type: ignore[operator]
    assert plan.for_node(99) == [None, None, None]


def test_k_times_makes_a_pass_for_each_member() -> None:
    plan = plan_of(5, k=3, k_times=True)  # groups of 3 and 2
    sizes = [[len(group.members) for group in groups] for groups in plan.passes]
    assert sizes == [[3, 2], [3, 2], [3]]
    for client in range(5):
        shares = plan.shares(client)
        present = [share for share in shares if share is not None]
        assert [share.learns for share in present].count(True) == 1
        seeds = [share.seed for share in present if isinstance(share, PatchShare)]
        assert len(set(seeds)) == len(present)  # fresh masks
    for groups in plan.passes:
        for group in groups:
            assert [m.share.learns for m in group.members].count(True) == 1


def test_k_times_needs_one_pass_for_a_client_alone() -> None:
    plan = plan_of(3, k=2, k_times=True)
    (alone,) = plan.unmixed
    assert [type(share) for share in plan.shares(alone)] == [FullShare, type(None)]


def test_groups_of_an_epoch_stay_while_masks_are_drawn_anew() -> None:
    mixer = PatchCutMix(2, regroup="epoch")
    plans = [
        mixer.plan(range(8), SHAPE, np.random.default_rng(step), np.random.default_rng(99))
        for step in range(3)
    ]
    grouped = [[tuple(m.client for m in g.members) for g in plan.passes[0]] for plan in plans]
    assert grouped[0] == grouped[1] == grouped[2]
    assert plans[0].for_node(0) != plans[1].for_node(0)


def test_groups_of_a_step_are_drawn_anew() -> None:
    grouped = {
        frozenset(frozenset(m.client for m in g.members) for g in plan_of(8, seed).passes[0])
        for seed in range(10)
    }
    assert len(grouped) > 5


def test_equal_generators_give_equal_plans() -> None:
    assert plan_of(7, 3, k=3) == plan_of(7, 3, k=3) != plan_of(7, 4, k=3)


def test_only_clients_that_are_alive_are_grouped() -> None:
    plan = PatchCutMix(2).plan([2, 5, 9], SHAPE, np.random.default_rng(0))
    assert sorted(m.client for g in plan.passes[0] for m in g.members) == [2, 5, 9]
    assert [share is None for share in plan.shares(0)] == [True]


def test_no_mixing_is_a_group_for_each_client() -> None:
    plan = NoMixing().plan([3, 1], SHAPE, np.random.default_rng(0))
    assert [[m.client for m in g.members] for g in plan.passes[0]] == [[3], [1]]
    assert plan.unmixed == (3, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1}, "k is 1; a mixing group needs at least 2 clients"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"rounding": "up"}, "rounding is 'up'"),
        ({"gradient": "multicast"}, "gradient is 'multicast'; it must be one of unicast, broad"),
        ({"regroup": "round"}, "regroup is 'round'; it must be one of step, epoch"),
        ({"leftover": "join"}, "leftover is 'join'; it must be one of send, skip"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PatchCutMix(**options)


def test_a_group_larger_than_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k is 4, but only 3 clients take part.*use 2 to 3"):
        PatchCutMix(4).check_clients(3)
    with pytest.raises(ValueError, match=r"only 2 clients take part in a round; use 2$"):
        PatchCutMix(4).check_clients(2)
    PatchCutMix(4).check_clients(4)
