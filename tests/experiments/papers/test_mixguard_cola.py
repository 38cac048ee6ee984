"""Table II's column CoLA, in 1,000 and in 3,000 steps."""

from __future__ import annotations

from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.pages.accuracy import AccuracyResults
from flwr_splitmix.experiments.report import make_tables

SHORT, LONG = EXPERIMENTS["mixguard-cola"], EXPERIMENTS["mixguard-cola-3000"]


def test_three_times_the_steps_are_the_same_rows_over_more_epochs() -> None:
    cpu = SCALES["cpu"]
    short = [cell.recipe for _, cell in SHORT.cells(cpu)]
    long = [cell.recipe for _, cell in LONG.cells(cpu)]
    assert {recipe.epochs for recipe in short} == {4}
    assert {recipe.epochs for recipe in long} == {12}
    assert {recipe.epochs * recipe.samples // recipe.batch_size for recipe in long} == {3000}
    assert [e.place for e in LONG.entries] == [e.place for e in SHORT.entries]
    assert not {c.id for _, c in LONG.cells(cpu)} & {c.id for _, c in SHORT.cells(cpu)}


def test_its_tables_are_of_its_own_number_of_epochs() -> None:
    cpu = SCALES["cpu"]
    (empty,) = make_tables(LONG, cpu, None)
    assert empty.epochs == 12
    assert AccuracyResults(LONG, cpu, "cola", {}).table.epochs == 12


def test_a_number_of_epochs_that_is_asked_for_goes_first() -> None:
    (cell, *_) = [cell for _, cell in LONG.cells(SCALES["cpu"], epochs=1)]
    assert cell.recipe.epochs == 1


def test_at_scale_smoke_both_share_their_runs() -> None:
    smoke = SCALES["smoke"]
    assert [c.id for _, c in LONG.cells(smoke)] == [c.id for _, c in SHORT.cells(smoke)]
