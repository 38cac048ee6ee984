"""Simulating the lower segment: the attacker has none of the victims' weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images import simulate
from flwr_splitmix.attacks.images.networks.shadows import train_shadow
from flwr_splitmix.attacks.images.simulate import Simulate
from flwr_splitmix.mixers import NoMixing
from tests.attacks.images.conftest import Bench, Embedding, Noise
from tests.attacks.victims import attacked

SEED = 0
"""Seed of the victims' lower segment, and of the attack: `splitmix attack` takes one for both."""


def test_the_simulated_segment_does_not_begin_with_the_victims_weights(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers=Embedding(SEED), knows_lowers=False)
    attack = Simulate()
    attack.fit(view, bench.public, Budget(scale="smoke", iterations=1), seed=SEED)
    assert isinstance(attack.lower, Embedding)
    simulated, original = (
        each.project.weight.flatten() for each in (attack.lower, Embedding(SEED))
    )
    assert abs(float(F.cosine_similarity(simulated, original, dim=0))) < 0.3


def test_nor_does_that_of_a_shadow_model() -> None:
    system = attacked("PSL")
    knowledge, public = replace(system.known_to("upper only"), lowers=None), system.public(16, SEED)
    shadow = train_shadow(knowledge, public, public, epochs=1, budget=Budget("smoke"), seed=SEED)
    assert isinstance(shadow.lowers, torch.nn.Module)
    for simulated, original in zip(
        shadow.lowers.parameters(), knowledge.fresh_lower(SEED).parameters(), strict=True
    ):
        assert not torch.equal(simulated, original)


@pytest.mark.parametrize("only_judged", [False, True], ids=["both losses", "the judge alone"])
def test_the_simulated_segments_tokens_approach_the_victims(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, only_judged: bool
) -> None:
    monkeypatch.setattr(simulate, "_TOKENS", 128)
    if only_judged:
        monkeypatch.setattr(simulate, "_distance", lambda simulated, real: 0 * simulated.sum())
    view = bench.view(NoMixing(), lowers=Embedding(SEED), knows_lowers=False)
    victim_tokens = torch.cat([release.smashed for release in view.releases]).mean(0)

    def apart(lower: nn.Module) -> float:
        with torch.no_grad():
            tokens = lower(view.knowledge.normalise(bench.public.images))
        return float((tokens.mean(0) - victim_tokens).square().mean())

    attack = Simulate()
    attack.fit(view, bench.public, Budget("cpu", iterations=40), seed=SEED)
    assert apart(attack.lower) < 0.9 * apart(view.knowledge.own_lower(SEED))


def test_the_distance_of_two_samples_is_zero_if_they_are_alike() -> None:
    one, other = torch.randn(2, 400, 3, generator=torch.Generator().manual_seed(0))
    assert float(simulate._distance(one, one)) == pytest.approx(0, abs=1e-6)
    near, far = (float(simulate._distance(one, other + shift)) for shift in (0.0, 3.0))
    assert 0 <= near < 0.05 < 0.5 < far


class Dropping(Embedding):
    """A lower segment with dropout."""

    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(super().forward(images), 0.3, self.training)


def test_a_simulated_segment_with_dropout_comes_from_the_seed(bench: Bench) -> None:
    view = bench.view(NoMixing(), knows_lowers=False)
    view = replace(view, knowledge=replace(view.knowledge, fresh_lower=Dropping))

    def weights(state: int) -> Tensor:
        torch.manual_seed(state)
        attack = Simulate()
        attack.fit(view, bench.public, Budget("smoke"), seed=SEED)
        return nn.utils.parameters_to_vector(attack.lower.parameters())

    assert torch.equal(weights(1), weights(2))


def test_nothing_is_learned_of_noise(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers=Noise(), knows_lowers=False)
    guess = bench.attack(Simulate(), view, Budget(scale="smoke", iterations=50))
    assert bench.error(guess, view) > 0.9 * bench.floor
