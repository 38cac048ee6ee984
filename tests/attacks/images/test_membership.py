"""Membership: the scores' reference values, and shadow models that remember."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.membership import Membership
from flwr_splitmix.attacks.images.networks.membership_scores import (
    confidence_logit,
    lira,
    rmia,
    train_membership,
)
from flwr_splitmix.attacks.images.networks.shadows import Shadow, fresh_like, losses, train_shadow
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.mixers import NoMixing
from tests.attacks.images.conftest import PATCHES, WIDTH, Bench, Embedding


def test_the_network_tells_members_by_their_loss() -> None:
    members = torch.arange(400) % 2 == 0
    features = torch.randn(400, 10)
    features[:, 3] -= 3 * members
    net = train_membership(features[:300], members[:300], epochs=20, seed=0)
    with torch.inference_mode():
        right = ((net(features[300:]) > 0) == members[300:]).double().mean()
    assert right > 0.85


def test_rmia_compares_with_models_that_have_not_seen_the_example() -> None:
    target = torch.tensor([0.9, 0.9, 0.1])
    references = torch.tensor([[0.2, 0.9, 0.1]])
    population = torch.full((100,), 0.5)
    scores = rmia(target, references, population, torch.full((1, 100), 0.5))
    # Offline, with a = 0.3: p(x) is (1.3 p_out + 0.7) / 2; only the first exceeds 0.5 / 0.675.
    assert 0.9 / ((1.3 * 0.2 + 0.7) / 2) > 0.5 / 0.675 > 0.1 / ((1.3 * 0.1 + 0.7) / 2)
    assert scores.tolist() == [1, 1, 0]


def test_liras_score_is_a_standard_score() -> None:
    references = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    spread = math.sqrt(2)  # of both columns
    scores = lira(torch.tensor([1 + spread, 2.0]), references)
    assert torch.allclose(scores, torch.tensor([1.0, 0.0]).double())
    with pytest.raises(ValueError, match="at least two models"):
        lira(torch.zeros(2), torch.zeros(1, 2))


def test_the_logit_of_a_certain_answer_is_finite() -> None:
    logits = confidence_logit(torch.tensor([0.0, 0.5, 1.0]))
    assert logits[1] == 0
    assert logits.isfinite().all()


class Head(nn.Module):
    """An upper segment that can remember."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(PATCHES * WIDTH))
        self.layers = nn.Sequential(nn.Linear(PATCHES * WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, smashed: Tensor) -> Tensor:
        logits: Tensor = self.layers(smashed.flatten(1) + self.token)
        return logits


def test_a_fresh_segment_has_other_weights_everywhere() -> None:
    old = Head()
    new = fresh_like(old, 1)
    for (name, before), after in zip(old.named_parameters(), new.parameters(), strict=True):
        assert not torch.equal(before, after), name
    again = fresh_like(old, 1)
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), again.parameters(), strict=True))


def test_a_shadow_model_remembers_its_members(bench: Bench) -> None:
    knowledge = replace(bench.view(NoMixing()).knowledge, upper=Head())
    members, rest = bench.public.divided(64)
    others = rest.take(slice(0, 64))
    shadow = train_shadow(knowledge, members, others, epochs=40, budget=Budget("cpu"), seed=0)
    rng = np.random.default_rng(0)
    inside, outside = (
        torch.cat(
            [
                losses(shadow.upper, release, knowledge.num_classes)
                for release in knowledge.simulate(
                    pictures.images, pictures.labels, rng, adversary="upper only"
                )
            ]
        ).mean()
        for pictures in (members, others)
    )
    assert inside < 0.5 * outside


class Stochastic(Head):
    """An upper segment that differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PATCHES * WIDTH, 128), nn.BatchNorm1d(128), nn.Dropout(0.5),
            nn.Linear(128, 10),
        )  # fmt: skip


def test_losses_are_those_of_evaluation_and_change_nothing() -> None:
    labels = torch.arange(65) % 10
    release = Release(0, 0, 0, torch.randn(65, PATCHES, WIDTH), labels=labels)
    upper = Stochastic().train()
    before = {name: value.clone() for name, value in upper.state_dict().items()}
    release_losses = losses(upper, release, 10)  # in parts of 64, and one row left over
    with torch.inference_mode():
        logits = upper.eval()(release.smashed)
    assert torch.allclose(
        release_losses, F.cross_entropy(logits, labels, reduction="none"), atol=1e-6
    )
    assert all(torch.equal(before[name], value) for name, value in upper.state_dict().items())


def test_an_adversary_has_the_upper_segment_in_evaluation_mode(bench: Bench) -> None:
    knowledge = replace(bench.view(NoMixing()).knowledge, upper=Stochastic().train())
    assert knowledge.upper is not None
    assert not any(module.training for module in knowledge.upper.modules())


def test_gradients_are_those_of_training_and_come_from_the_seed(bench: Bench) -> None:
    knowledge = replace(bench.view(NoMixing()).knowledge, upper=Stochastic())
    assert knowledge.upper is not None
    before = {name: value.clone() for name, value in knowledge.upper.state_dict().items()}

    def simulated() -> Tensor:
        releases = knowledge.simulate(
            bench.victims.images, bench.victims.labels, np.random.default_rng(0), gradients=True
        )
        return torch.cat([r.gradient for r in releases if r.gradient is not None])

    torch.manual_seed(1)
    first = simulated()
    torch.manual_seed(2)
    assert torch.equal(first, simulated())
    after = knowledge.upper.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not knowledge.upper.training
    # In training, gradients at a batch-normalised layer sum to zero over the batch.
    batch = first[: knowledge.batch_size].flatten(1)
    assert float(batch.sum(0).abs().max()) < 1e-3 * float(batch.abs().max())


def test_a_shadow_model_with_dropout_comes_from_the_seed(bench: Bench) -> None:
    knowledge = replace(bench.view(NoMixing()).knowledge, upper=Stochastic())
    members, rest = bench.public.divided(32)

    def weights(state: int) -> Tensor:
        torch.manual_seed(state)
        shadow = train_shadow(knowledge, members, rest, epochs=2, budget=Budget("smoke"), seed=0)
        return nn.utils.parameters_to_vector(shadow.upper.parameters())

    assert torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("winner", ["network", "rmia"])
def test_the_score_that_detects_members_best_is_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, winner: str
) -> None:
    view = bench.view(NoMixing(), "upper only")
    labels = torch.arange(20) % 10
    both = tuple(
        [Release(0, 0, None, torch.full((20, PATCHES, WIDTH), value), labels=labels)]
        for value in (1.0, -1.0)  # members, others
    )
    right, wrong = (1.0, -1.0) if winner == "network" else (-1.0, 1.0)
    attack = Membership()
    attack.classes = 10
    attack.shadows = [Shadow(Head(), Embedding(0), bench.victims, bench.victims)] * 2
    attack.seen = [([*both[0]], [*both[1]])] * 2
    monkeypatch.setattr(
        attack, "_network", lambda releases: lambda features: right * features[:, 0]
    )
    monkeypatch.setattr(
        attack,
        "_by_references",
        lambda score, upper, others, of: torch.cat([wrong * r.smashed[:, 0, 0] for r in of]),
    )
    assert "lower" in view.available
    assert attack._choose(view) == winner


def test_without_labels_there_is_no_such_attack(bench: Bench) -> None:
    view = bench.view(NoMixing(), "upper only")
    bare = [replace(release, labels=None) for release in view.releases]
    with pytest.raises(NotApplicable, match="no labels"):
        Membership().fit(
            replace(view, releases=bare, knowledge=replace(view.knowledge, upper=Head())),
            bench.public,
            Budget("smoke"),
        )
