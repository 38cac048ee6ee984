"""Guesses at few images, and the attacks that make them, for tests of scores and floors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.catalogue import attack_named
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.scores import AttackScores, score_guess
from tests.attacks.victims import attacked

LABELS = torch.tensor([0, 1, 0, 1])


def truth_of(images: Tensor, sources: Tensor, **more: Tensor) -> Truth:
    trained = torch.arange(len(images)) % 2 == 0
    origin = Origin(sources, tuple(range(sources.shape[1])), **more)
    return Truth(Pictures(images, LABELS[: len(images)]), trained, [origin])


def floors(images: Tensor | None = None) -> Floors:
    public = torch.rand(20, 1, 32, 32) if images is None else images
    return Floors(Pictures(public, torch.zeros(len(public), dtype=torch.int64)))


def rows_of(n: int) -> list[tuple[int, int]]:
    return [(0, row) for row in range(n)]


def guess_of(values: Tensor, where: list[tuple[int, int]] | None = None) -> Guess:
    return Guess(values, torch.ones(len(values)), where or rows_of(len(values)))


def grey(levels: Tensor) -> Tensor:
    return levels[:, None, None, None].expand(-1, 1, 4, 4).clone()


def attack_on(case: Case, name: str, *, trained: bool = True) -> AttackScores:
    budget = Budget("smoke", iterations=None if trained else 1)
    public = attacked().public(300)
    attack = attack_named(name)()
    attack.fit(case.view, public, budget)
    guess = attack.run(case.view)
    return score_guess(attack.goal, guess, case.truth, Floors.of(attack, case.view, public))


def plain(trained: int = 0) -> Case:
    return attacked("PSL").case("server", trained=trained, held_out=64, assume=["lower"])


class Two(Attack):
    """Guesses a grey that its setting says."""

    name, goal = "two", "images"
    settings: ClassVar[tuple[Mapping[str, float], ...]] = ({"grey": 0.9}, {"grey": 0.3})

    def run(self, view: View) -> Guess:
        grey = torch.full((1, 32, 32), self.setting["grey"])
        places = [(i, j) for i, r in enumerate(view.releases) for j in range(len(r.smashed))]
        return guess_of(grey.expand(len(places), -1, -1, -1), places)
