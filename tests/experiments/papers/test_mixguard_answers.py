"""MixGuard's ablations on other corpora than CoLA: printed numbers, varied options, runs."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.papers.mixguard_answers import ANSWERS, GSM8K
from tests.experiments.papers.conftest import RunTable

# As printed for Qwen3-1.7B, row by row.
PRINTED = {
    "mixguard-table4-gsm8k": "0.455 0.464 0.350 0.291 0.309 0.306 0.479",
    "mixguard-table8-gsm8k": ("0.443 0.438 0.434 0.441 0.426 0.416 0.419 0.407 0.438 0.442 0.450"),
    "mixguard-fig4-gsm8k": "0.428 0.447 0.447 0.403 0.431 0.409 0.406 0.456 0.420",
    "mixguard-table7-mrpc": "0.879 0.884",
    "mixguard-table7-gsm8k": "0.459 0.446",
    "mixguard-table7-samsum": "0.533 0.532",
}


@pytest.mark.parametrize("name", PRINTED)
def test_numbers_are_those_that_are_printed(name: str) -> None:
    shown = [number for e in EXPERIMENTS[name].entries for number in e.paper.values()]
    assert shown == pytest.approx([100 * float(number) for number in PRINTED[name].split()])
    assert {experiment.name for experiment in ANSWERS} == {*PRINTED, "mixguard-fig3c-gsm8k"}


def test_the_runs_of_figure_3_are_rows_of_table_8_with_the_papers_seconds() -> None:
    figure, table = EXPERIMENTS["mixguard-fig3c-gsm8k"], EXPERIMENTS["mixguard-table8-gsm8k"]
    assert {e.column: list(e.paper.values()) for e in figure.entries if e.paper} == {
        "k = 3": [2479.0],  # "46.3% on GSM8K (2479s vs. 3628s)"
        "k = 10": [3628.0],
    }
    rows = {entry.row: entry.variant for entry in table.entries}
    assert [e.variant for e in figure.entries] == [rows[f"m = 3, k = {k}"] for k in range(3, 11)]


def test_pairs_of_corpora_are_those_of_the_figure_on_cola() -> None:
    ours, theirs = (
        {e.row: e.variant.public_corpora for e in EXPERIMENTS[name].entries if e.variant}
        for name in ("mixguard-fig4-gsm8k", "mixguard-fig4")
    )
    assert ours == theirs
    cells = [cell for _, cell in EXPERIMENTS["mixguard-fig4-gsm8k"].cells(SCALES["cpu"])]
    assert len({cell.id for cell in cells}) == 7


def changes(name: str) -> dict[str, dict[str, Any]]:
    """Return each row's options that differ from its setting's base."""
    return {
        entry.row: {
            key: value
            for key, value in dict(entry.variant.options).items()
            if key not in GSM8K.base or GSM8K.base[key] != value
        }
        for entry in EXPERIMENTS[name].entries
        if entry.variant is not None
    }


def test_each_row_changes_what_it_says() -> None:
    table = changes("mixguard-table4-gsm8k")
    assert table["MixGuard"] == {}
    assert table["w/o secret tokens"] == {"secret_tokens": 0}
    assert table["w/o secret tokens and perturbation"] == {
        "secret_tokens": 0,
        "perturbation": None,
    }
    for row, changed in changes("mixguard-table8-gsm8k").items():
        setting = {**GSM8K.base, **changed}
        assert row == f"m = {setting['m']}, k = {setting['k']}"
        assert changed.keys() <= {"k", "m"}


def test_what_is_varied_is_the_skewed_row_of_the_table_of_utility() -> None:
    for scale in SCALES.values():
        (skewed,) = (
            cell.id
            for entry, cell in EXPERIMENTS["mixguard-table3-gsm8k"].cells(scale)
            if entry.row == "MixGuard, skewed secrets"
        )
        ours = {e.row: c.id for e, c in EXPERIMENTS["mixguard-table4-gsm8k"].cells(scale)}
        assert ours["MixGuard"] == skewed


@pytest.mark.parametrize("name", PRINTED)
def test_every_cell_runs_without_any_file(name: str, run_table: RunTable) -> None:
    experiment = EXPERIMENTS[name]
    for place, summary in run_table(name).items():
        for score in experiment.scores[:2]:  # of split and of local inference
            value = score.of(summary)
            assert value is not None, (place, score.name)
            assert 0 <= value <= 100
