"""Which of a row's columns is its epsilon, and what that covers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.epsilon import counts_mixtures, epsilon_facts, epsilon_of
from flwr_splitmix.runs.reports.facts import facts_of
from flwr_splitmix.strategies import DPMixSL
from flwr_splitmix.testing.toy import Toy

NONE = {"epsilon": None, "epsilon_covers": None}


@pytest.mark.parametrize(
    ("row", "strategy", "epsilon", "covers"),
    [
        ({"epsilon": 2.0}, "DPCutMixSL", 2.0, "a client's uploads about one record; not"),
        ({"epsilon": 2.0, "train_epsilon": 1.0}, "my own", 2.0, "a client's uploads"),
        ({"epsilon": None, "train_epsilon": 1.0}, "DPForwardSL", 1.0, "a client's messages about"),
        ({"train_epsilon": 0.0}, "DPSGDSL", 0.0, "the weights of a client's head and tail, about"),
        ({"train_epsilon": math.inf}, "DPForwardSL", math.inf, "a client's messages"),
        ({"train_epsilon": 1.0}, "my own", 1.0, "what the clients' own method counts"),
        ({"train_epsilon": 1.0}, None, 1.0, "what the clients' own method counts"),
        ({"train_epsilon": 1.0}, {"name": "x"}, 1.0, "what the clients' own method counts"),
    ],
)
def test_a_rows_epsilon_is_the_ledgers_or_the_clients_own(
    row: dict[str, Any], strategy: Any, epsilon: float, covers: str
) -> None:
    assert epsilon_of(row) == epsilon
    facts = epsilon_facts(row, strategy, mixtures=False)
    assert facts["epsilon"] == epsilon
    assert facts["epsilon_covers"].startswith(covers)


@pytest.mark.parametrize("row", [{}, {"epsilon": None}, {"train_epsilon": None, "loss": 1.0}])
def test_without_accounting_there_is_none(row: dict[str, Any]) -> None:
    assert epsilon_facts(row, "SnDSL", mixtures=True) == NONE


@pytest.mark.parametrize(
    ("config", "mixtures"),
    [
        ({}, False),
        ({"trusted-mixer": False, "link-via": ""}, False),
        ({"trusted-mixer": True}, True),
        ({"link-via": "mixer.example:9444"}, True),
    ],
)
def test_a_ledger_of_mixtures_covers_no_single_uploads(
    config: dict[str, Any], mixtures: bool
) -> None:
    """An epsilon that counts mixtures alone must not be said to cover each upload."""
    assert counts_mixtures(config) is mixtures
    covers = epsilon_facts({"epsilon": 2.0}, "DPMixSL", mixtures=mixtures)["epsilon_covers"]
    coverage = (
        "mixtures of clients' uploads, about one record of a client, if another party than the"
    )
    assert covers.startswith(coverage) is mixtures
    assert ("; not single uploads, gradients sent" in covers) is mixtures


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("configured", [False, True])
def test_what_is_covered_is_chosen_by_the_ledger_or_without_a_summary_by_the_configuration(
    trusted: bool, configured: bool, tmp_path: Path
) -> None:
    run = Run.create({"trusted-mixer": configured}, name="r", home=tmp_path)
    toy = Toy(tests=0)
    noise = GaussianNoise(sigma_s=5.0, sigma_y=5.0)
    strategy = DPMixSL(toy.upper(), noise=noise, k=2, device="cpu", run=run, trusted_mixer=trusted)
    strategy.fit(toy.make_clients(), 1)
    summary = run.summary or {}
    assert summary["epsilon_covers"].startswith("mixtures of") is trusted
    assert facts_of(run)["epsilon_covers"] == summary["epsilon_covers"]
    (run.path / "summary.json").unlink()
    assert facts_of(Run(run.path))["epsilon_covers"].startswith("mixtures of") is configured
