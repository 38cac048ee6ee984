"""Noise by configuration: it reaches every client, both ledgers count it, and a budget holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.clients import PrivacyBudget
from flwr_splitmix.observers import PrivacyLedger
from flwr_splitmix.privacy import GaussianNoise, Relation, Release, ReleasePlan
from flwr_splitmix.strategies import STRATEGIES
from tests.apps.vision_app import run_config, split_client
from tests.apps.vision_fit import fit, read

NOISE: dict[str, Any] = {"sigma_s": 5.0, "sigma_y": 2.0}
EVEN: dict[str, Any] = {**NOISE, "strategy": "DPCutMixSFL", "alpha": math.inf}
"""Every client keeps half of the patches in every step: both ledgers then say the same."""

REFUSE = {
    "InputMixupSL",
    "InputMixupSFL",
    "InputCutoutSL",
    "InputCutoutSFL",
    "InputVanillaCutMixSL",
    "InputVanillaCutMixSFL",
    "InputCutMixSL",
    "InputCutMixSFL",
    "PatchShuffleSL",
    "BatchShuffleSL",
    "SpectralShuffleSL",
}


def epsilon(passes: int, relation: Relation = "replace", delta: float = 1e-5) -> float:
    """Return what so many passes with `EVEN` cost a record: 16 patches of 192 numbers."""
    noise = GaussianNoise(sigma_s=5.0, sigma_y=2.0)
    release = Release(noise=noise, patches=16, width=192)
    plan = ReleasePlan(
        release=release, passes=passes, delta=delta, kept=0.5, k=2, relation=relation
    )
    return plan.epsilon()


def strategy_of(**values: Any) -> Any:
    config = read(depth=1, **values)
    return make_strategy(config, segments_of(config).upper, None)


def own_epsilons(clients: list[Any], delta: float = 1e-5) -> list[float]:
    """Return what the clients' own ledgers say."""
    return [client.guard.ledger.epsilon(delta) for client in clients]


def test_every_key_reaches_the_noise_and_the_servers_ledger() -> None:
    values: dict[str, Any] = {
        "sigma_s": 3.0,
        "sigma_y": 0.25,
        "clip": "range",
        "clip_norm": 0.15,
        "smashed_noise": "all",
        "label_noise": "before",
        "clamp_labels": False,
    }
    strategy = strategy_of(
        **values, strategy="MixupSFL", delta=1e-3, relation="add-remove", trusted_mixer=True
    )
    assert strategy.mixer.noise == GaussianNoise(**values)
    ledger = strategy.ledger
    settings = (ledger.delta, ledger.relation, ledger.trusted_mixer)
    assert settings == (1e-3, "add-remove", True)


def test_the_keys_defaults_are_the_librarys() -> None:
    config, ledger = read(**NOISE), PrivacyLedger()
    assert config.noise == GaussianNoise(**NOISE)
    assert config.budget == PrivacyBudget()
    configured = strategy_of(**NOISE).ledger
    assert (configured.delta, configured.relation, configured.trusted_mixer) == (
        ledger.delta,
        ledger.relation,
        ledger.trusted_mixer,
    )


@pytest.mark.parametrize(("present", "lacking"), [("sigma_s", "sigma_y"), ("sigma_y", "sigma_s")])
def test_noise_on_one_part_will_do_where_no_epsilon_is_asked_for(
    present: str, lacking: str
) -> None:
    noise = read(strategy="DPSL", **{present: 1.0}).noise
    assert noise is not None
    assert noise.gaps == (lacking,)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_takes_noise_or_says_that_it_does_not(name: str) -> None:
    if name in REFUSE:
        with pytest.raises(ValueError, match=r"run-config: .* takes no noise"):
            read(strategy=name, **NOISE)
    else:
        mixer: Any = read(strategy=name, **NOISE).trial().mixer
        assert mixer.noise == GaussianNoise(**NOISE)


def test_without_noise_nobody_keeps_a_ledger() -> None:
    assert strategy_of(clip="none", delta=1e-3).ledger is None
    client = split_client(0, 10, run_config(depth=1))
    assert client.privacy is None
    assert client.guard is None


@pytest.mark.parametrize(("limit", "max_epsilon"), [(0.0, None), (8.0, 8.0)])
def test_a_clients_budget_is_what_the_configuration_says(
    limit: float, max_epsilon: float | None
) -> None:
    options = {"delta": 1e-3, "relation": "add-remove", "allow_averaging": True}
    values = run_config(depth=1, **NOISE, max_epsilon=limit, **options)
    client = split_client(3, 10, values)
    assert client.privacy == PrivacyBudget(max_epsilon=max_epsilon, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
def test_both_ledgers_say_what_a_run_was_planned_to_cost(
    relation: Relation, tmp_path: Path
) -> None:
    # Four steps are two passes over 8 images in batches of 4.
    fitted = fit(tmp_path, 2, **EVEN, relation=relation, delta=1e-3, steps_per_round=4)
    planned = epsilon(2, relation, 1e-3)
    assert fitted.row["epsilon"] == pytest.approx(planned, rel=1e-9)
    assert own_epsilons(fitted.clients, 1e-3) == pytest.approx([planned] * 2, rel=1e-9)


def test_a_trusted_mixer_lowers_the_servers_epsilon_and_not_the_clients(tmp_path: Path) -> None:
    values = {**EVEN, "smashed_noise": "all"}
    alone = fit(tmp_path / "alone", 2, **values)
    summed = fit(tmp_path / "summed", 2, **values, trusted_mixer=True)
    assert summed.row["epsilon"] < 0.9 * alone.row["epsilon"]
    assert own_epsilons(summed.clients) == own_epsilons(alone.clients)


def test_no_client_goes_above_its_budget_whatever_masks_are_drawn(tmp_path: Path) -> None:
    limit = 1.2 * epsilon(2)
    fitted = fit(
        tmp_path,
        2,
        **{**EVEN, "alpha": 2.0},
        max_epsilon=limit,
        allow_averaging=True,
        num_server_rounds=9,
        steps_per_round=2,
    )
    spent = own_epsilons(fitted.clients)
    assert all(0.5 * limit < client_epsilon <= limit for client_epsilon in spent)
    assert len(fitted.rows) < 9
    assert fitted.strategy.stop_reason.startswith("the privacy budget of ")


@pytest.mark.parametrize(
    ("evaluation", "bounded"), [("none", True), ("benchmark", True), ("federated", False)]
)
def test_only_evaluation_on_clients_own_images_ends_the_bound(
    evaluation: str, bounded: bool, tmp_path: Path
) -> None:
    fitted = fit(tmp_path, 2, **EVEN, evaluation=evaluation)
    assert math.isfinite(fitted.row["epsilon"]) == bounded
    assert all(
        math.isfinite(client_epsilon) == bounded for client_epsilon in own_epsilons(fitted.clients)
    )


def test_benchmark_images_are_the_test_split_on_which_no_client_trains() -> None:
    values = run_config(depth=1, **NOISE)
    config, client = read(depth=1, **NOISE), split_client(0, 2, values)
    assert client.tests["benchmark"] is images_of(config).test
