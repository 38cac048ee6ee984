"""The ends of a bound: cases without a number, and their announcement on both sides."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.links import LinkError
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import (
    DPSFL,
    DPSL,
    PSL,
    DPCutMixSL,
)
from flwr_splitmix.words import epsilon_text
from tests.strategies.noise.honest import (
    E_S,
    E_Y,
    NOISE,
    TOY,
    check_order,
    epsilon,
    limits,
    noised,
    run,
)


def test_what_no_number_covers_stands_beside_it() -> None:
    alone, averaged = run(noised(DPSL)), run(noised(DPSFL))
    for outcome in (alone, averaged):
        assert outcome.said(0).startswith("epsilon ")
        assert "gradients sent to clients" in outcome.said(0)
        assert "what a record did to the lower segment" in outcome.said(0)
    assert "lower segments" not in alone.said(0)
    assert "lower segments sent to be averaged" in averaged.said(0)
    assert alone.by_server(0) == averaged.by_server(0)


def test_the_log_says_once_what_no_number_covers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(noised(DPSFL), rounds=3)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("privacy of")]
    (line,) = lines
    assert "Not covered: gradients sent to clients; lower segments sent to be averaged" in line
    assert outcome.strategy.ledger is not None
    assert "client 0: epsilon" in line
    assert outcome.strategy.ledger.report().startswith("client 0: epsilon ")


@pytest.mark.parametrize("kind", [DPSL, DPCutMixSL])
def test_evaluation_on_private_tests_ends_every_bound_and_says_why(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(
            noised(kind), replace(TOY, tests=5), 3, evaluation="federated", evaluate_every=2
        )
    # Evaluated after rounds 2 and 3.
    assert [math.isinf(row.epsilons[0]) for row in outcome.seen.rounds] == [False, True, True]
    why = "no epsilon: evaluation without noise on data not declared public"
    assert why in outcome.said(0)
    assert outcome.by_client(0) == math.inf
    assert any(why in record.getMessage() for record in caplog.records)


def test_tests_that_clients_declare_public_cost_nothing() -> None:
    budgets = {client: PrivacyBudget(public_evaluation=client > 0) for client in range(4)}
    outcome = run(noised(DPSL), replace(TOY, tests=5), evaluation="federated", budgets=budgets)
    assert [math.isinf(outcome.by_server(client)) for client in range(4)] == [True] + [False] * 3
    assert [math.isinf(outcome.by_client(client)) for client in range(4)] == [True] + [False] * 3
    check_order(outcome, range(1, 4))


def test_batch_norm_in_the_lower_segment_ends_every_bound_on_both_sides() -> None:
    outcome = run(noised(DPSL), replace(TOY, batch_norm=True))
    assert outcome.by_server(0) == outcome.by_client(0) == math.inf
    assert "no epsilon: BatchNorm, or another layer across the batch" in outcome.said(0)
    with pytest.raises(
        LinkError, match="what is asked of it has no epsilon: BatchNorm, or another layer"
    ):
        run(noised(DPSL), replace(TOY, batch_norm=True), budgets=limits(*[1e6] * 4))


def test_evaluation_on_a_public_benchmark_costs_nothing() -> None:
    outcome = run(noised(DPSL), replace(TOY, tests=5), evaluation="benchmark", benchmark=True)
    assert outcome.seen.rounds[0].evaluation is not None
    assert outcome.slopes(0) == pytest.approx(E_S + E_Y)
    check_order(outcome, range(4))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip": "none"}, "no clipping of the smashed data"),
        ({"sigma_s": 0.0}, "no noise on the smashed data (sigma_s = 0)"),
        ({"sigma_y": 0.0}, "no noise on the labels (sigma_y = 0)"),
    ],
)
def test_noise_that_bounds_nothing_is_said_in_words(changes: dict[str, Any], why: str) -> None:
    outcome = run(partial(DPCutMixSL, noise=replace(NOISE, **changes)))
    assert outcome.by_server(0) == math.inf
    assert f"no epsilon: {why}" in outcome.said(0)


def test_metrics_and_progress_show_the_largest_epsilon_and_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy, home = replace(TOY, clients=2, examples=(8, 24)), Run.create({}, name="dp", home=tmp_path)
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        outcome = run(noised(DPSL), toy, 2, run=home)
    rows = Run.open(home.id, home=tmp_path).rows
    for server_round, row in enumerate(rows, start=1):
        each = json.loads(row["epsilon_by_client"])
        # Client 0 has 2 batches of 4 steps, client 1 has 6.
        assert each == pytest.approx(
            {
                "0": epsilon(2 * server_round * (E_S + E_Y)),
                "1": epsilon((1 + (server_round > 1)) * (E_S + E_Y)),
            }
        )
        assert row["epsilon"] == max(each.values())
    assert rows[-1]["epsilon"] == outcome.by_server(0)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round ")]
    for row, line in zip(rows, lines, strict=True):
        assert f"epsilon {epsilon_text(row['epsilon'])}" in line


def test_without_noise_there_is_no_epsilon(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        strategy = PSL(TOY.upper(), device="cpu")
        strategy.fit(TOY.make_clients(), 1)
    assert strategy.ledger is None
    assert not strategy.epsilons()
    assert "epsilon" not in strategy.rows[0]
    assert "epsilon" not in caplog.text


def test_an_epsilon_that_is_not_finite_survives_the_file(tmp_path: Path) -> None:
    home = Run.create({}, name="dp", home=tmp_path)
    run(partial(DPSL, noise=replace(NOISE, clip="none")), run=home)
    (row,) = Run.open(home.id, home=tmp_path).rows
    assert row["epsilon"] == math.inf
    assert set(json.loads(row["epsilon_by_client"]).values()) == {"inf"}
