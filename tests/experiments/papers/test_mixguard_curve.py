"""Leak against utility: the rows are samplers; runs are shared with `mixguard-cola`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from tests.experiments.papers.conftest import RunTable

CURVE = EXPERIMENTS["mixguard-curve"]


def options_of(row: str) -> dict[str, Any]:
    return next(dict(e.variant.options) for e in CURVE.entries if e.row == row and e.variant)


def test_rows_that_mixguard_cola_has_too_are_the_same_runs() -> None:
    for scale in SCALES.values():
        ids = {
            name: {e.row: cell.id for e, cell in EXPERIMENTS[name].cells(scale)}
            for name in ("mixguard-curve", "mixguard-cola")
        }
        ours, theirs = ids["mixguard-curve"], ids["mixguard-cola"]
        assert ours["unsplit"] == theirs["unsplit"]
        assert ours["U shape"] == theirs["U shape"]
        assert ours["convex 1"] == theirs["MixGuard, convex secrets"]
        assert ours["skewed 1.5"] == theirs["MixGuard, skewed secrets"]
        assert len(set(ours.values())) == len(ours)


@pytest.mark.parametrize(
    ("row", "sampler", "scale", "distortion", "decoding"),
    [
        ("rotated", "rotated", 1.0, None, "sum"),
        ("rotated, max_distortion 0.4", "rotated", 1.0, 0.4, "sum"),
        ("convex 1", "convex", 1.0, None, "sum"),
        ("convex 2", "convex", 2.0, None, "sum"),
        ("skewed 1", "skewed", 1.0, None, "sum"),
        ("skewed 1.5", "skewed", 1.5, None, "sum"),
        ("skewed 2", "skewed", 2.0, None, "sum"),
        ("convex 1, residual decoding (extension)", "convex", 1.0, None, "residual"),
        ("skewed 1.5, residual decoding (extension)", "skewed", 1.5, None, "residual"),
    ],
)
def test_each_row_is_the_sampler_that_it_names(
    row: str, sampler: str, scale: float, distortion: float | None, decoding: str
) -> None:
    options = MixGuardOptions(**options_of(row))
    assert (options.sampler, options.support_scale) == (sampler, scale)
    assert (options.max_distortion, options.decoding) == (distortion, decoding)
    assert (options.k, options.m, options.secret_tokens, options.refine_every) == (3, 3, 0, 8)
    assert options.mask == "target"


def test_each_sampler_is_to_be_within_five_points_of_the_unsplit_model() -> None:
    claims = {str(ordering) for ordering in CURVE.orderings}
    assert "unsplit < convex 1 + 5 (MiniLM-L6)" in claims
    assert len(claims) == 9


def test_the_decoders_curve_has_the_same_rows_and_is_made_on_the_fly_at_scale_smoke() -> None:
    decoder = EXPERIMENTS["mixguard-curve-stories15m"]
    assert [entry.row for entry in decoder.entries] == [entry.row for entry in CURVE.entries]
    models = {
        name: {(cell.model, cell.model_options) for _, cell in decoder.cells(scale)}
        for name, scale in SCALES.items()
    }
    cut = (("head", 1), ("tail", 1))
    assert models == {
        "smoke": {("tiny", cut)},
        "cpu": {("stories15m", cut)},
        "paper": {("stories15m", cut)},
    }


@pytest.mark.parametrize("name", ["mixguard-curve", "mixguard-curve-stories15m"])
def test_every_row_says_its_error_and_its_leak(
    name: str, run_table: RunTable, text_runs: Path
) -> None:
    summaries = {row: summary for (row, _), summary in run_table(name).items()}
    for row, summary in summaries.items():
        assert -1 <= summary["eval_matthews"] <= 1, row
        if row in ("unsplit", "U shape"):
            assert "train_leak" not in summary
        else:
            assert 0 < summary["train_leak"] <= 1, row
            assert summary["train_decode_error"] > 0, row
            assert summary["train_calibrated_error"] > 0, row
    # The target's weight is one in each message: its |cos| falls as the supports' share grows.
    assert summaries["skewed 1"]["train_leak"] > summaries["skewed 2"]["train_leak"]
    (table,) = make_tables(EXPERIMENTS[name], SCALES["smoke"], text_runs)
    assert {claim.verdict for claim in table.claims} <= {"agrees", "disagrees"}
    assert all(len(line.further) == 5 for line in table.lines)
