"""MixGuard's tables and figures on CoLA: printed numbers, varied options, and runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.papers.mixguard_costs import PerStep
from flwr_splitmix.experiments.papers.mixguard_fhe import RHO, EncryptedModel
from flwr_splitmix.experiments.papers.mixguard_settings import COLA
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from tests.experiments.papers.conftest import RunTable

BASE, MODELS = dict(COLA.base), COLA.models

TABLES = (
    "mixguard-table4",
    "mixguard-table6",
    "mixguard-table7",
    "mixguard-table8",
    "mixguard-fig3b",
    "mixguard-fig3c",
    "mixguard-fig4",
    "mixguard-fig5",
)

# As printed for Qwen3-1.7B on CoLA, row by row.
ACCURACY = {
    "mixguard-table4": {
        "MixGuard": 0.846,
        "w/o calibration model": 0.833,
        "w/o pre-training (Stage I)": 0.829,
        "w/o gradient perturbation": 0.853,
        "w/ non-adaptive perturbation": 0.852,
    },
    "mixguard-table7": {"Base": 0.845, "+ Cal.": 0.844},
    "mixguard-table8": {
        "MixGuard": 0.846,
        "w/o secret tokens": 0.855,
        "w/o calibration model": 0.833,
        "w/o pre-training (Stage I)": 0.829,
        "w/o gradient perturbation": 0.853,
        "w/ non-adaptive perturbation": 0.852,
        "w/o secret tokens and perturbation": 0.859,
        "m = 3, k = 3": 0.845,
        "m = 3, k = 4": 0.850,
        "m = 3, k = 5": 0.852,
        "m = 3, k = 6": 0.848,
        "m = 3, k = 7": 0.850,
        "m = 3, k = 8": 0.838,
        "m = 3, k = 9": 0.839,
        "m = 3, k = 10": 0.836,
        "m = 5, k = 3": 0.856,
        "m = 7, k = 3": 0.853,
        "m = 9, k = 3": 0.853,
    },
}


def changes(name: str) -> dict[str, dict[str, Any]]:
    """Return each row's options that differ from the tables' base."""
    return {
        entry.row: {
            key: value
            for key, value in dict(entry.variant.options).items()
            if key not in BASE or BASE[key] != value
        }
        for entry in EXPERIMENTS[name].entries
        if entry.variant is not None and entry.variant.method == "MixGuard"
    }


@pytest.mark.parametrize("name", ACCURACY)
def test_numbers_are_those_that_are_printed(name: str) -> None:
    for entry in EXPERIMENTS[name].entries:
        printed = ACCURACY[name].get(entry.row)
        expected = {} if printed is None else {"CoLA accuracy": pytest.approx(100 * printed)}
        assert entry.paper == expected, entry.place
    assert {entry.row for entry in EXPERIMENTS[name].entries} >= ACCURACY[name].keys()


def test_each_ablation_leaves_out_what_its_row_says() -> None:
    table = changes("mixguard-table4")
    assert table["MixGuard"] == {}
    assert table["w/o gradient perturbation"] == {"perturbation": None}
    assert table["w/ non-adaptive perturbation"] == {"perturbation": "constant"}
    assert table["with 20 secret tokens (ours)"] == {"secret_tokens": 20}
    options = {row: MixGuardOptions(**{**BASE, **changed}) for row, changed in table.items()}
    assert not options["w/o calibration model"].calibrates
    late = options["w/o pre-training (Stage I)"]
    assert late.calibrates
    assert late.calibration_epochs == 0
    assert changes("mixguard-table7") == {"Base": {"calibrated_inference": False}, "+ Cal.": {}}


def test_sources_and_messages_are_varied_one_at_a_time() -> None:
    for row, changed in changes("mixguard-table8").items():
        if row.startswith("m ="):
            options = MixGuardOptions(**{**BASE, **changed})
            assert row == f"m = {options.m}, k = {options.k}"
            assert changed.keys() <= {"k", "m"}
    cells = {
        name: {cell.id for _, cell in EXPERIMENTS[name].cells(SCALES["cpu"])} for name in TABLES
    }
    assert cells["mixguard-fig3b"] == cells["mixguard-fig3c"]
    assert cells["mixguard-fig3b"] < cells["mixguard-table8"]
    assert cells["mixguard-table4"] < cells["mixguard-table8"]


def test_what_is_varied_is_a_row_of_the_curve() -> None:
    for curve, model in zip(("mixguard-curve", "mixguard-curve-stories15m"), MODELS, strict=True):
        (row,) = (e for e in EXPERIMENTS[curve].entries if e.row == "skewed 1.5")
        (base,) = (
            e for e in EXPERIMENTS["mixguard-table4"].entries if e.place == ("MixGuard", model)
        )
        assert row.variant == base.variant


def test_the_estimate_of_encrypted_training_is_the_papers_up_to_its_rounding() -> None:
    model = EncryptedModel()
    # Appendix B.4: 14.1 s per sample and layer, 50/7 as many parameters, 28 layers, 2643/1671.
    assert RHO.layer_seconds == pytest.approx(14.1, abs=0.05)
    assert model.seconds() == pytest.approx(4454.9, rel=4e-3)
    assert round(100.7 * 28 * 1.58, 1) == pytest.approx(4454.9, abs=0.11)
    assert (model.ciphertexts, model.megabytes) == (32, 1920.0)
    # Linear in layers and in the machine's throughput; the number of ciphertexts is rounded up.
    assert replace(model, layers=14).seconds() == pytest.approx(model.seconds() / 2)
    assert replace(model, teraflops=2643.0, layers=1, layer_parameters=7e6).seconds() == (
        pytest.approx(RHO.layer_seconds)
    )
    assert replace(model, tokens=513).ciphertexts == 33


def test_a_score_of_a_step_is_the_runs_sum_over_its_steps() -> None:
    both = PerStep("MB a step", "up", 1e-6, 3, ("down",))
    assert both.of({"up": 3e6, "down": 1e6, "steps": 8}) == pytest.approx(0.5)
    assert both.of({"up": 3e6, "steps": 8}) is None
    assert both.of({"up": 3e6, "down": 1e6, "steps": 0}) is None


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_runs_without_any_file(name: str, run_table: RunTable, text_runs: Path) -> None:
    summaries = run_table(name)
    assert all(-1 <= summary["eval_matthews"] <= 1 for summary in summaries.values())
    (table,) = make_tables(EXPERIMENTS[name], SCALES["smoke"], text_runs)
    verdicts = {claim.verdict for claim in table.claims}
    assert verdicts <= {"agrees", "disagrees", "not offered"}
    assert "not run" not in {line.state for line in table.lines}


@pytest.mark.parametrize("model", MODELS)
def test_costs_are_ordered_as_in_table_6(model: str, run_table: RunTable) -> None:
    summaries = {row: s for (row, at), s in run_table("mixguard-table6").items() if at == model}
    (_, both) = EXPERIMENTS["mixguard-table6"].scores
    megabytes = {row: both.of(summary) or 0.0 for row, summary in summaries.items()}
    plain = megabytes["No Defense"]
    assert megabytes["DP-Forward"] == plain
    # Three messages and three gradients instead of one each; masks are sent once.
    sparing = megabytes["MixGuard, refined at every eighth step (ours)"]
    assert 2.9 * plain < sparing < megabytes["MixGuard"]


@pytest.mark.parametrize("model", MODELS)
def test_more_sources_cost_no_bytes(model: str, run_table: RunTable, text_runs: Path) -> None:
    run_table("mixguard-fig3c")
    (table,) = make_tables(EXPERIMENTS["mixguard-fig3c"], SCALES["smoke"], text_runs)
    uplinks = {line.uplink for line in table.lines if line.entry.row == f"MixGuard ({model})"}
    assert len(uplinks) == 1


@pytest.mark.parametrize("model", MODELS)
def test_inference_without_the_calibrator_is_of_the_same_training(
    model: str, run_table: RunTable
) -> None:
    summaries = run_table("mixguard-table7")
    base, calibrated = summaries["Base", model], summaries["+ Cal.", model]
    for key in ("loss", "train_decode_error", "train_calibrated_error", "train_leak", "steps"):
        assert base[key] == calibrated[key], key
