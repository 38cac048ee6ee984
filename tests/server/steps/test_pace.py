"""What a pace allows, whom it asks, and which clients are of one speed."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import NoMixing, PatchCutMix, Shuffled, SmashedShape
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL, CutMixSL, MixupSL


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"straggler": "hurry"}, "straggler is 'hurry'; it must be one of wait, skip"),
        ({"group_order": "size"}, "group_order is 'size'; it must be one of random, arrival"),
        ({"grouping": "age"}, "grouping is 'age'; it must be one of random, speed"),
        ({"straggler_factor": 1.0}, "straggler_factor is 1.0; it must be above 1"),
        ({"straggler_factor": float("nan")}, "straggler_factor is nan; it must be above 1"),
    ],
)
def test_what_is_not_allowed_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Pace(**options)


@pytest.mark.parametrize(
    ("kind", "pace", "options", "sentence"),
    [
        (PSL, {"group_order": "arrival"}, {"server_update": "sum"}, "server_update is 'sum'"),
        (CutMixSL, {"group_order": "arrival"}, {"k_times": True}, "but with k_times a client"),
        (PSL, {"grouping": "speed"}, {}, "NoMixing forms no groups of clients"),
    ],
)
def test_a_strategy_that_does_not_allow_a_pace_says_why(
    kind: type[PSL], pace: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        kind(torch.nn.Identity(), num_classes=2, pace=Pace(**pace), **options)


def test_clients_of_one_class_take_about_as_long() -> None:
    seconds = {0: 1.0, 1: 4.2, 2: 1.4, 3: 4.0, 4: 1.6, 5: 20.0}
    assert Pace().classes(seconds) == {}
    assert Pace(grouping="speed").classes(seconds) == {0: 0, 2: 0, 4: 1, 3: 2, 1: 2, 5: 3}
    assert Pace(grouping="speed").classes({}) == {}


@pytest.mark.parametrize("mixer", [PatchCutMix(2), Shuffled(PatchCutMix(2))], ids=str)
def test_groups_of_one_speed_are_random_within_their_class(mixer: Any) -> None:
    strategy = MixupSL(torch.nn.Identity(), num_classes=2, pace=Pace(grouping="speed"))
    mixer.group_within(strategy.pace.classes({0: 1.0, 1: 9.0, 2: 1.1, 3: 9.5, 4: 1.2, 5: 9.1}))
    shape = SmashedShape(2, 4, 3)
    drawn = {
        tuple(sorted(tuple(sorted(m.client for m in group.members)) for group in plan.passes[0]))
        for step in range(40)
        for plan in [mixer.plan(range(6), shape, generator(1, "plan", step))]
    }
    fast, slow = {0, 2, 4}, {1, 3, 5}
    for groups in drawn:
        # Three and three: one group of two must have one of each.
        assert sum(set(g) <= fast or set(g) <= slow for g in groups) == 2
    assert len(drawn) > 5


class Round:
    """What `Pace.members` needs of a round's clients."""

    def __init__(self, busy: set[int]) -> None:
        self.busy = frozenset(busy)
        self.alive = (0, 1, 2, 3)


def test_who_still_answers_is_not_asked_unless_too_few_are_left() -> None:
    skip = Pace("skip")
    one = cast(Clients, Round({2}))
    assert skip.members(one, one.alive, 2) == [0, 1, 3]
    assert skip.members(one, one.alive, 4) == [0, 1, 2, 3]
    assert Pace().members(one, one.alive, 1) == [0, 1, 2, 3]
    assert Pace().patience(2) is None
    assert NoMixing().min_members == 1
