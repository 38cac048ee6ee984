"""`splitmix check` says what the noise of a language run will cost, and its ledgers say as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.language.noise_cost import remark_noise
from flwr_splitmix.privacy.events import OUTSIDE_IN_U_SHAPE, UNBOUNDED
from tests.apps.language_app import TINY, fit, read

NOISY = {**TINY, "strategy": "DPForwardSL", "steps_per_round": 5, "num_server_rounds": 2}

WITHOUT_GRADIENTS = "; ".join(OUTSIDE_IN_U_SHAPE[channel] for channel in ("messages", "lengths"))
"""The uploads that DP-SGD does not cover where only the tail learns."""


def remarks(nodes: int | None = 2, **values: Any) -> list[str]:
    report = Report("app", nodes or 2, nodes_known=nodes is not None)
    remark_noise(read(**{**NOISY, **values}), report)
    return report.remarks


def number(remark: str, before: str) -> float:
    return float(remark.split(before)[1].split()[0].rstrip(","))


@pytest.mark.parametrize(
    ("values", "assumed"),
    [
        ({}, "5 releases of a training text"),
        ({"epochs_per_round": 2, "steps_per_round": 0}, "4 releases of a training text"),
        ({"steps_per_round": 1, "num_server_rounds": 3}, "3 releases of a test text"),
        ({"steps_per_round": 1, "evaluation": "benchmark"}, "1 release of a training text"),
        ({"strategy": "DPSGDSL", "steps_per_round": 2}, "2 releases of a training text"),
        ({"samples_per_client": 3}, "18 releases of a training text"),  # with replacement
        ({"samples_per_client": 3, "strategy": "DPSGDSL"}, "41 releases of a training text"),
    ],
)
def test_the_clients_ledgers_say_what_was_planned(
    values: dict[str, Any], assumed: str, tmp_path: Path
) -> None:
    (remark,) = remarks(**values)
    assert remark.endswith(f"Assumed: {assumed}")
    spent = fit(tmp_path, **{**NOISY, **values}).rows[-1]["train_epsilon"]
    assert number(remark, "planned privacy: epsilon ") == pytest.approx(spent, rel=1e-3)


@pytest.mark.parametrize("seed", [1, 2])  # with seed 0 a client is in every round
def test_those_of_the_clients_that_are_drawn_say_it_too(seed: int, tmp_path: Path) -> None:
    values = {"num_server_rounds": 4, "fraction_train": 0.4, "min_nodes": 2, "seed": seed}
    (remark,) = remarks(5, **values)
    spent = fit(tmp_path, 5, **{**NOISY, **values}).rows[-1]["train_epsilon"]
    assert number(remark, "epsilon about ") == pytest.approx(spent, rel=1e-3)
    assert number(remark, "at most ") > spent
    assert f"as seed {seed} draws the clients, and at most 10 releases of a training text" in remark


def test_noise_that_hides_nothing_is_planned_to_leave_no_epsilon() -> None:
    (remark,) = remarks(strategy="DPSGDSL", noise_multiplier=1e-9)
    assert remark.startswith(f"this run has no epsilon: {UNBOUNDED['resolution']}; a standard")


def test_answers_are_planned_with_all_their_tokens() -> None:
    (remark,) = remarks(task="generation", generation_scores=True, max_new_tokens=7)
    assert remark.endswith("Assumed: 14 releases of a test text, up to 7 in each evaluation")


def test_texts_that_are_left_out_as_too_long_are_in_no_pass() -> None:
    """Without a third of its texts a client has passed over the others twice."""
    few = {"max_length": 80, "samples_per_client": 40, "batch_size": 2, "steps_per_round": 10}
    assert (
        "2 releases of a training text" in remarks(**few, long_texts="drop", evaluation="none")[0]
    )
    assert "1 release of a training text" in remarks(**few, long_texts="cut", evaluation="none")[0]


def test_what_is_not_covered_is_said() -> None:
    (remark,) = remarks(aggregator="FedAvg")
    for words in ("lengths of texts", "did to the head", "gradients returned", "heads and tails"):
        assert words in remark
    lengths, losses = (OUTSIDE_IN_U_SHAPE[channel] for channel in ("lengths", "losses"))
    assert losses in remark
    assert losses in remarks(strategy="DPSGDSL")[0]
    for kind in ("federated", "benchmark"):  # the tail that is scored has learned the labels
        (remark,) = remarks(learns="tail", evaluation=kind)
        assert f"Not covered: {lengths}; {losses}. Assumed" in remark
    (remark,) = remarks(learns="tail", evaluation="none")
    assert f"Not covered: {lengths}. Assumed" in remark
    (remark,) = remarks(learns="tail", strategy="DPSGDSL")
    assert remark.split("Not covered: ")[1].startswith(f"{WITHOUT_GRADIENTS}; {losses}. Assumed")
    for kind in ("benchmark", "none"):
        (remark,) = remarks(learns="tail", strategy="DPSGDSL", evaluation=kind)
        assert remark.split("Not covered: ")[1].startswith(f"{WITHOUT_GRADIENTS}. Assumed")


@pytest.mark.parametrize("parts", ["trunk", "head,trunk,tail"])
def test_a_head_without_adapters_learns_too(parts: str, tmp_path: Path) -> None:
    """The epsilon leaves out what texts do to it; the plan says so, as the ledger does."""
    values: dict[str, Any] = {"lora_rank": 2, "lora_parts": parts}
    (remark,) = remarks(**values)
    assert OUTSIDE_IN_U_SHAPE["head"] in remark
    hiding: Any = fit(tmp_path, **{**NOISY, **values}).clients[0].hiding
    assert OUTSIDE_IN_U_SHAPE["head"] in hiding.statement().outside


def test_without_a_ledger_nothing_is_said_and_without_sizes_what_is_needed() -> None:
    for strategy in ("USplitSL", "NoPeekSL", "MixGuard"):
        assert remarks(strategy=strategy) == []
    (remark,) = remarks(strategy="SnDSL")
    assert remark.startswith("this run has no epsilon: SnDSL's noise bounds what single releases")
    assert "`splitmix check --nodes` reports it" in remarks(None, samples_per_client=0)[0]
    assert remarks(None) == remarks(2)
