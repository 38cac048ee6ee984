"""Simulating the lower segment: the attacker has none of the victims' weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.shadows import train_shadow
from flwr_splitmix.attacks.images.simulate import Simulate
from flwr_splitmix.mixers import NoMixing
from tests.attacks.images.conftest import Bench, Embedding, Noise
from tests.attacks.victims import attacked

SEED = 0
"""Seed of the victims' lower segment, and of the attack: `splitmix attack` takes one for both."""


def test_the_simulated_segment_does_not_begin_with_the_victims_weights(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers=Embedding(SEED), known=False)
    attack = Simulate()
    attack.fit(view, bench.public, Budget(scale="smoke", iterations=1), seed=SEED)
    assert isinstance(attack.lower, Embedding)
    own, theirs = (each.project.weight.flatten() for each in (attack.lower, Embedding(SEED)))
    assert abs(float(F.cosine_similarity(own, theirs, dim=0))) < 0.3


def test_nor_does_that_of_a_shadow_model() -> None:
    system = attacked("PSL")
    known, public = system.known_to("upper only"), system.public(16, SEED)
    shadow = train_shadow(known, public, public, epochs=1, budget=Budget("smoke"), seed=SEED)
    assert isinstance(shadow.lowers, torch.nn.Module)
    for own, theirs in zip(
        shadow.lowers.parameters(), known.fresh_lower(SEED).parameters(), strict=True
    ):
        assert not torch.equal(own, theirs)


def test_nothing_is_learned_of_noise(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers=Noise(), known=False)
    guess = bench.attack(Simulate(), view, Budget(scale="smoke", iterations=50))
    assert bench.error(guess, view) > 0.9 * bench.floor
