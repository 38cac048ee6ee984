"""A table's block: results beside the paper's numbers, each seed, and places not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flwr_splitmix.experiments import SCALES, experiment_named
from flwr_splitmix.experiments.pages.commands import not_run_block
from tests.experiments.pages.test_result_files import export
from tests.experiments.pages.toy import finish


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    for seed, top1 in enumerate((0.40, 0.44)):
        finish(tmp_path, "PSL", "n = 2", seed, top1)
    for seed, top1 in enumerate((0.42, 0.43, 0.50)):
        finish(tmp_path, "SFL", "n = 2", seed, top1)
    finish(tmp_path, "PSL", "n = 4", 0, 0.30)
    (result,) = export(tmp_path)
    return result.block("data/file.json").splitlines()


def test_a_row_has_mean_each_seed_the_papers_number_and_bytes(lines: list[str]) -> None:
    assert lines[0] == (
        "MixGuard, Table 0: a toy. Scale `smoke`, data set fashion-mnist-small, 2 epochs, "
        "flwr-splitmix 0.1.0 ([result file](data/file.json))."
    )
    assert "splitmix experiment run toy --scale smoke --seeds 0,1,2" in lines
    rows = [line for line in lines if "| n = " in line]
    assert rows == [
        "| PSL | n = 2 | 42.00 ± 2.83 | 40.00, 44.00 (of 0, 1) | 52.00 | 4.00 |",
        "| PSL | n = 4 | 30.00 | 30.00 (of 0) | 54.00 | 4.00 |",
        "| SFL | n = 2 | 45.00 ± 4.36 | 42.00, 43.00, 50.00 | 52.00 | 5.00 |",
    ]


def test_orderings_have_a_verdict_a_margin_and_the_seeds_that_agree(lines: list[str]) -> None:
    assert "The paper's orderings: 1 agree, 2 disagree, 5 not run." in lines
    at = lines.index("| ordering | here | margin, points | seeds that agree |")
    assert lines[at + 2 :] == [
        "| PSL < SFL (n = 2) | agrees | +0.50 | 1 of 2 |",
        "| uplink of SFL < PSL (n = 2) | disagrees | -1.00 MB | - |",
        "| PSL: n = 2 < n = 4 | disagrees | -10.00 | 0 of 1 |",
        "| PSL < SFL (n = 3, n = 4) | not run | - | - |",
        "| SFL < CutMixSL (n = 2, n = 3, n = 4) | not run | - | - |",
    ]


def test_of_places_without_a_seed_in_common_that_is_said(tmp_path: Path) -> None:
    finish(tmp_path, "PSL", "n = 2", 0, 0.40)
    finish(tmp_path, "SFL", "n = 2", 1, 0.42)
    (result,) = export(tmp_path)
    lines = result.block("data/file.json").splitlines()
    assert "| PSL < SFL (n = 2) | agrees | +2.00 | none in common |" in lines


def test_what_was_not_run_is_said(lines: list[str]) -> None:
    assert "Not run: every method at n = 3; *SFL* at n = 4; *CutMixSL* at n = 2, n = 4." in lines
    assert "Not offered here: other." in lines
    assert "a note" in lines


def test_of_a_table_without_results_stands_how_to_make_it() -> None:
    text = not_run_block(experiment_named("mixguard-cola"), SCALES["cpu"])
    assert "Scale `cpu`: not run yet." in text
    assert (
        "splitmix experiment run mixguard-cola --scale cpu --dataset FOLDER/cola --seeds 0,1,2"
        in text
    )


def test_a_set_that_comes_with_its_scale_needs_no_folder() -> None:
    text = not_run_block(experiment_named("patch-shuffling-table7"), SCALES["cpu"])
    assert "splitmix experiment run patch-shuffling-table7 --scale cpu --seeds 0,1,2" in text


def test_places_that_were_run_with_another_version_are_named(tmp_path: Path) -> None:
    for row in ("PSL", "SFL"):
        finish(tmp_path, row, "n = 2", 0, 0.4)
    (exported,) = export(tmp_path)
    assert "Made with" not in exported.block("file.json")
    at = ("SFL", "n = 2")
    (one,) = exported.measured_at[at]
    others = {**exported.measured_at, at: (replace(one, version="0.1.0 (before)"),)}
    block = replace(exported, measured_at=others).block("file.json")
    assert "flwr-splitmix 0.1.0, 0.1.0 (before) ([result" in block
    assert "Made with flwr-splitmix 0.1.0 (before), at least one seed: *SFL* at n = 2." in block
