"""Attacks on a system whose images have several labels each."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.catalogue import attack_named
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.scores import score_guess
from tests.attacks.victims import small

BUDGET = Budget(scale="smoke", iterations=3)


@pytest.fixture(scope="module")
def system() -> Attacked:
    return train_victim(small("CutMixSL", dataset="fashion-mnist-multi"))


@pytest.mark.parametrize(
    ("name", "adversary"),
    [("linear", "server"), ("decoder", "server"), ("decoder", "upper only"), ("match", "server")],
)
def test_images_are_rebuilt_and_scored_without_their_class(
    system: Attacked, name: str, adversary: Adversary
) -> None:
    case = system.case(adversary, assume=["lower"], trained=4, held_out=4)
    attack = attack_named(name)()
    public = case.truth.pictures
    attack.fit(case.view, public, BUDGET)
    guess = attack.run(case.view)
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))
    scored = score_guess("images", guess, case.truth, Floors(public), classifier=classifier)
    assert {measure.metric for measure in scored.measures} >= {"MSE"}
    assert "class" not in {measure.metric for measure in scored.measures}


@pytest.mark.parametrize(
    "name", ["labels-gradient", "labels-cluster", "labels-peer", "labels-public", "membership"]
)
def test_attacks_on_a_class_or_a_member_do_not_apply(system: Attacked, name: str) -> None:
    adversary: Adversary = "member of the group" if name == "labels-peer" else "server"
    case = system.case(adversary, trained=4, held_out=4)
    with pytest.raises(NotApplicable, match="images of one class each, and these have several"):
        attack_named(name)().fit(case.view, case.truth.pictures, BUDGET)
