"""What an own attack's `run` may return: anything else is named before it is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.guess import checked_guess
from flwr_splitmix.attacks.running.leak import measure_leak
from tests.attacks.victims import attacked

Damage = Callable[[Guess], Any]


class Grey(Attack):
    """Guesses grey images."""

    name = "grey"
    goal: ClassVar[Goal] = "images"
    needs = frozenset({"smashed data"})

    def run(self, view: View) -> Guess:
        where = [
            (i, row)
            for i, release in enumerate(view.releases)
            for row in range(len(release.smashed))
        ]
        values = torch.full((len(where), *view.knowledge.image_shape), 0.5)
        return Guess(values, torch.ones(len(where)), where)


@cache
def view() -> View:
    return attacked().case("server", trained=8, held_out=8).view


def grey(goal: Goal = "images") -> Attack:
    attack = Grey()
    attack.goal = goal  # type: ignore[misc]
    return attack


def test_a_guess_is_checked_while_settings_are_compared_too() -> None:
    """One of NaN is never better than any, and one of another shape cannot be compared."""

    class Tried(Grey):
        settings: ClassVar[tuple[Mapping[str, Any], ...]] = (
            {"wrong": "nothing"},
            {"wrong": "shape"},
            {"wrong": "values"},
        )

        def run(self, view: View) -> Guess:
            guess, wrong = super().run(view), self.setting["wrong"]
            if wrong == "shape":
                return replace(guess, values=guess.values[..., :1])
            return replace(guess, values=guess.values * (torch.nan if wrong == "values" else 1))

    public = attacked().public(20)
    with pytest.raises(ValueError, match=r"'shape'.*public images.*Tried\.run returns a"):
        Tried.tune(view(), public, Budget("smoke"))
    Tried.settings = (Tried.settings[0], Tried.settings[2])
    with pytest.raises(ValueError, match=r"'values'.*Tried\.run returns a Guess whose values have"):
        Tried.tune(view(), public, Budget("smoke"))


def test_an_own_attack_that_guesses_nan_is_no_sign_of_safety() -> None:
    """An MSE of NaN beats no floor, as if nothing leaked."""

    class Diverged(Grey):
        def run(self, view: View) -> Guess:
            guess = super().run(view)
            return replace(guess, values=guess.values * float("nan"))

    with pytest.raises(ValueError, match=r"Diverged\.run returns a Guess whose values have NaN"):
        measure_leak(attacked(), Diverged, victims=8, budget=Budget("smoke"))
    main, *_ = measure_leak(attacked(), Grey, victims=8, budget=Budget("smoke"))
    assert main.value > 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: None, r"Grey\.run returns None; expected a Guess\(values, confidence, where\)"),
        (lambda g: g.values, r"Grey\.run returns a tensor \(\d+, 1, 32, 32\); expected a Guess"),
        (
            lambda g: replace(g, values=g.values[:, :, :3]),
            r"with values \(\d+, 1, 3, 32\) of torch.float32 at \d+ places \(where\); expected a "
            r"float tensor \(\d+, 1, 32, 32\), images from 0 to 1, one for each place",
        ),
        (
            lambda g: replace(g, values=g.values[1:]),
            r"values \(\d+, 1, 32, 32\) .* one for each pl",
        ),
        (lambda g: replace(g, values=(g.values * 255).byte()), "of torch.uint8 at .* a float tens"),
        (lambda g: replace(g, values=g.values.tolist()), "values a list of a list of .* a float t"),
        (
            lambda g: replace(g, values=g.values / 0),
            "values have NaN or infinite numbers; they must be",
        ),
        (
            lambda g: replace(g, confidence=g.confidence[:2]),
            r"confidence \(2,\) of torch.float32; ",
        ),
        (lambda g: replace(g, confidence=1.0), "confidence a float; expected a float tensor"),
        (lambda g: replace(g, confidence=g.confidence * float("nan")), "whose confidence has NaN"),
        (
            lambda g: replace(g, where=[(99, 0), *g.where[1:]]),
            r"where\[0\] \(99, 0\), but the view has \d+ releases, counted from 0",
        ),
        (
            lambda g: replace(g, where=[*g.where[:-1], (0, 8)]),
            r"where\[\d+\] \(0, 8\), but release 0 has 8 rows, counted from 0",
        ),
        (lambda g: replace(g, where=[(0, -1), *g.where[1:]]), r"where\[0\] \(0, -1\), but release"),
        (lambda g: replace(g, where=[0] * len(g.where)), r"where\[0\] an int; expected a list of"),
        (lambda g: replace(g, where=None), "where None; expected a list of pairs"),
    ],
)
def test_what_is_no_guess_is_named(damage: Damage, message: str) -> None:
    attack = grey()
    with pytest.raises((TypeError, ValueError), match=message):
        checked_guess(attack, damage(attack.run(view())), view())


def test_places_may_be_numpys_numbers() -> None:
    """A place is a key of a dictionary."""
    attack = grey()
    guess = attack.run(view())
    where: Any = [tuple(map(np.int64, place)) for place in guess.where]
    checked = checked_guess(attack, replace(guess, where=where), view())
    assert checked.where == guess.where
    assert all(type(each) is int for place in checked.where for each in place)


@pytest.mark.parametrize(
    ("goal", "values", "message"),
    [
        ("order", torch.zeros(4, 16, dtype=torch.int64), ""),
        ("order", torch.zeros(4, 16), r"int64 tensor \(4, 16\), the position of each patch"),
        ("owners", torch.zeros(4, 16, dtype=torch.int64), ""),
        ("owners", torch.zeros(4, 9, dtype=torch.int64), r"int64 tensor \(4, 16\), the owner of"),
        ("labels", torch.zeros(4, dtype=torch.int64), ""),
        ("labels", torch.zeros(4), ""),
        ("labels", torch.zeros(4, 10), ""),
        ("labels", torch.zeros(4, 3), r"classes, or scores, float \(4,\) or \(4, 10\)"),
        ("membership", torch.zeros(4), ""),
        ("membership", torch.zeros(4, 2), r"a float tensor \(4,\), scores"),
    ],
)
def test_each_goal_has_its_values(goal: Goal, values: Any, message: str) -> None:
    guess = Guess(values, torch.ones(4), [(0, row) for row in range(4)])
    if not message:
        assert checked_guess(grey(goal), guess, view()).values is values
        return
    with pytest.raises(ValueError, match=message):
        checked_guess(grey(goal), guess, view())
