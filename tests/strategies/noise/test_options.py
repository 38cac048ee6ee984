"""Strategies that take noise, and the options that they reject."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from flwr_splitmix.clients import exchange
from flwr_splitmix.mixers import (
    InputLevel,
    Mixer,
    Mixup,
    Noisy,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    Shuffled,
)
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.strategies import (
    DPSFL,
    DPSL,
    PSL,
    STRATEGIES,
    CutMixSL,
    DPCutMixSFL,
    DPCutMixSL,
    DPMixSFL,
    DPMixSL,
    MixupSL,
    ShuffledPSL,
    SplitStrategy,
)
from flwr_splitmix.testing.toy import sgd
from tests.laws.makers import EDGES
from tests.observers.kept_events import KeptEvents
from tests.strategies.noise.honest import (
    E_S,
    E_Y,
    NOISE,
    TOY,
    Honest,
    check_order,
    noised,
    run,
)


@pytest.mark.parametrize("kind", [DPSL, DPSFL, DPMixSL, DPMixSFL, DPCutMixSL, DPCutMixSFL])
def test_a_strategy_that_promises_noise_needs_it(kind: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{kind.__name__} needs noise=GaussianNoise\(sigma_s="):
        kind(TOY.upper(), noise=None)


@pytest.mark.parametrize("noise", [None, NOISE])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 2.0}, "delta is 2.0; it must lie strictly between 0 and 1"),
        ({"relation": "remove"}, "relation is 'remove'; it must be one of replace, add-remove"),
        ({"trusted_mixer": "no"}, "trusted_mixer is 'no'; it must be True or False"),
    ],
)
def test_the_options_of_the_ledger_are_checked_with_and_without_noise(
    noise: GaussianNoise | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PSL(TOY.upper(), noise=noise, **options)


NOISABLE = [
    name for name in STRATEGIES if not name.startswith(("DP", "Input")) and name not in EDGES
]


@pytest.mark.parametrize("name", NOISABLE)
def test_every_mixing_strategy_takes_noise(name: str) -> None:
    outcome = run(noised(STRATEGIES[name]), rounds=2)
    check_order(outcome, range(4))
    assert outcome.by_server(0) > 0
    groups = [group for step in outcome.seen.steps for group in step.plan.passes[0]]
    assert all(isinstance(m.share, NoisyShare) for group in groups for m in group.members)


@pytest.mark.parametrize(
    ("named", "same"),
    [(DPSL, PSL), (DPMixSL, MixupSL), (DPCutMixSL, CutMixSL), (DPSL, ShuffledPSL)],
    ids=lambda kind: kind.__name__,
)
def test_a_strategy_with_a_name_of_its_own_is_the_other_with_noise(named: Any, same: Any) -> None:
    ledgers, losses = [], []
    for kind in (named, same):
        outcome = run(noised(kind), repeatable=True, rounds=2, seed=5)
        ledgers.append([outcome.slopes(client) for client in range(4)])
        losses.append([float(step.result.loss) for step in outcome.seen.steps])
    assert ledgers[0] == ledgers[1]
    assert (losses[0] == losses[1]) == (same is not ShuffledPSL)


@pytest.mark.parametrize("name", [n for n in STRATEGIES if n.startswith("Input") or n in EDGES])
def test_strategies_that_mix_inputs_or_send_no_labels_take_no_noise(name: str) -> None:
    options: dict[str, Any] = {"labels": TOY.labels()} if name in EDGES else {}
    with pytest.raises(ValueError, match="takes no noise: it has no labels to cover, or mixes inp"):
        STRATEGIES[name](TOY.upper(), noise=NOISE, **options)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=f"delta is {delta}; it must lie strictly between 0 and 1"):
        DPSL(TOY.upper(), noise=NOISE, delta=delta)


def test_neighbours_are_those_of_the_strategy() -> None:
    outcome = run(noised(DPSL), relation="add-remove")
    assert outcome.slopes(0) == pytest.approx(E_S / 4 + E_Y / 2)
    assert "when a record is replaced by an empty one" in outcome.said(0)


def test_delta_is_that_of_the_strategy() -> None:
    small, large = (run(noised(DPSL), delta=delta) for delta in (1e-9, 1e-3))
    rows = [outcome.strategy.rows[0]["epsilon"] for outcome in (small, large)]
    assert rows[0] > rows[1]
    assert rows[1] == pytest.approx(
        float(epsilon_from_rdp(rdp_curve(E_S + E_Y), 1e-3)[0]), rel=1e-12
    )


def test_soft_labels_outside_0_to_1_are_refused_where_they_are_to_be_clamped() -> None:
    class Loud(Honest):
        @exchange
        def step(self, **arguments: Any) -> dict[str, Any]:
            reply = super().step(**arguments)
            return {**reply, "labels": [soft + 2 for soft in reply["labels"]]} if reply else reply

    for clamp in (True, False):
        observer = KeptEvents()
        noise = replace(NOISE, clamp_labels=clamp)
        strategy = DPSL(TOY.upper(), noise=noise, device="cpu", observers=[observer])
        clients = [*TOY.make_clients()[:3], TOY.make_clients(kind=Loud)[3]]
        clients[3].sent = {}  # type: ignore[attr-defined]
        strategy.fit(clients, 1)
        expected = {3: "uploaded soft labels outside 0..1"} if clamp else {}
        assert observer.rounds[0].failures == expected


@pytest.mark.parametrize("part", ["smashed", "labels"])
def test_one_client_that_sends_what_no_noise_can_make_ends_nobody_elses_run(part: str) -> None:
    """Labels of -1e6 in one step would bring gradients for which all others leave the run."""

    class Absurd(Honest):
        @exchange
        def step(self, **arguments: Any) -> dict[str, Any]:
            reply = super().step(**arguments)
            return {**reply, part: [torch.full_like(t, -1e6) for t in reply[part]]} if reply else {}

    observer = KeptEvents()
    noise = GaussianNoise(sigma_s=0.1, sigma_y=0.1, clamp_labels=False)
    options: dict[str, Any] = {"optimizer": sgd(0.1), "device": "cpu", "observers": [observer]}
    strategy = DPMixSL(TOY.upper(), noise=noise, **options)
    clients = [*TOY.make_clients()[:3], TOY.make_clients(kind=Absurd)[3]]
    clients[3].sent = {}  # type: ignore[attr-defined]
    strategy.fit(clients, 2)
    for event in observer.rounds:
        assert event.failures.keys() == {3}
        assert event.failures[3].startswith("uploaded s")
    assert all(bool((p.abs() < 100).all()) for p in strategy.upper.module.parameters())


def test_noise_is_in_what_the_server_learns_from() -> None:
    """And it is not the same from step to step."""
    toy = replace(TOY, dropout=0.0)
    observer = run(noised(DPSL), toy, 1, steps_per_round=2, repeatable=True).seen
    spreads = [float(step.mixed.smashed.std()) for step in observer.steps]
    assert spreads == pytest.approx([20.0, 20.0], rel=0.2)
    assert not observer.steps[0].mixed.smashed.eq(observer.steps[1].mixed.smashed).any()
    assert all(torch.isfinite(step.mixed.targets).all() for step in observer.steps)


@pytest.mark.parametrize(
    ("mixer", "noise"),
    [
        (Shuffled(Noisy(PatchCutMix(k=2), NOISE)), None),
        (Noisy(Noisy(NoMixing(), NOISE), NOISE), None),
        (Noisy(NoMixing(), NOISE), NOISE),
        (InputLevel(Noisy(Mixup(k=2), NOISE)), None),
    ],
    ids=str,
)
def test_noise_within_another_mixer_is_refused(mixer: Mixer, noise: GaussianNoise | None) -> None:
    """It would have no ledger at the server."""
    with pytest.raises(ValueError, match="noise comes last and once: give noise="):
        SplitStrategy(TOY.upper(), mixer=mixer, noise=noise)
