"""The matrix: cells, the order of tasks, results and their gate, and a run of two rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place, choose
from flwr_splitmix.experiments.privacy.columns import COLUMNS, Column
from flwr_splitmix.experiments.privacy.grid import TaskProgress, run_tasks
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.noise import LADDER, find_noise, resolved
from flwr_splitmix.experiments.privacy.results import Result, results
from flwr_splitmix.experiments.privacy.rows import ROWS, Row
from flwr_splitmix.experiments.privacy.sizes import SIZES
from flwr_splitmix.experiments.privacy.tables import to_markdown
from flwr_splitmix.experiments.privacy.tasks import tasks_of, with_gates
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.methods import strategy_names

SMOKE = SIZES["smoke"]
DECODER = next(c for c in COLUMNS if (c.attack, c.adversary) == ("decoder", "server"))


def place_in(folder: Path) -> Place:
    return Place(folder, SMOKE, SMOKE.source)


def test_every_image_method_is_a_row_and_so_are_the_defences() -> None:
    assert [*strategy_names("L"), "GN", "DP", "Blur", "Adv"] == list(ROWS)
    assert set(IMAGES.main) <= set(ROWS)


def test_a_filter_names_rows_and_attacks() -> None:
    assert len(choose("", [0, 1])) == 2 * len(ROWS) * len(COLUMNS)
    cells = choose("CutMixSL, PSL:decoder", [3])
    assert [c.column for c in cells if c.row.name == "PSL"] == [
        c for c in COLUMNS if c.attack == "decoder"
    ]
    assert [c.column for c in cells if c.row.name == "CutMixSL"] == list(COLUMNS)
    assert {c.row.name for c in choose("main:linear", [0])} == set(IMAGES.main)
    assert {c.row.name for c in choose(":linear", [0])} == set(ROWS)
    for wrong in ("PSI", "PSL:decode", ","):
        with pytest.raises(ExperimentError):
            choose(wrong, [0])


def test_a_cells_file_follows_from_all_that_defines_it_and_from_nothing_else(
    tmp_path: Path,
) -> None:
    place = place_in(tmp_path)
    cell = MatrixCell(ROWS["PSL"], DECODER, 0)
    others = [
        replace(cell, seed=1),
        replace(cell, row=replace(ROWS["PSL"], options=(("k", 3),))),
        replace(cell, column=replace(DECODER, public=0.1)),
    ]
    files = [each.file(place) for each in (cell, *others)]
    files.append(cell.file(replace(place, size=replace(SMOKE, epochs=3))))
    assert len(set(files)) == 5
    assert replace(cell, row=replace(ROWS["PSL"], note="said")).file(place) == files[0]


def test_tasks_come_behind_what_they_need(tmp_path: Path) -> None:
    cells = with_gates([MatrixCell(ROWS["DPCutMixSL"], DECODER, 1)])
    task_names = [str(task) for task in tasks_of(cells, place_in(tmp_path))]
    assert task_names == [
        "PSL: training, seed 1",
        "PSL: decoder, server, seed 1",
        "CutMixSL: training, seed 0",
        "DPCutMixSL: noise at which top-1 is CutMixSL's",
        "DPCutMixSL: training, seed 1",
        "DPCutMixSL: decoder, server, seed 1",
    ]


@pytest.mark.parametrize(
    ("reached", "chosen"),
    [({0.1: 0.9, 0.2: 0.8, 0.4: 0.69, 0.8: 0.5}, 0.4), ({0.1: 0.2}, 0.1)],
)
def test_noise_grows_until_accuracy_falls_below_that_of_cutmixsl(
    reached: dict[float, float], chosen: float, tmp_path: Path
) -> None:
    place = Place(tmp_path, SIZES["cpu"], "fashion-mnist-small")
    tried: list[float] = []

    def accuracy(row: Row) -> float:
        tried.append(float(str(dict(row.options)["sigma_s"])))
        return reached[tried[-1]]

    assert find_noise(ROWS["DPSL"], place, 0.7, accuracy) == chosen
    assert tried == list(LADDER["cpu"])[: len(reached)]
    assert dict(resolved(ROWS["DPSL"], place).options)["sigma_s"] == chosen


def keep(
    place: Place, row: str, column: Column, seed: int, *, state: str = "done", **metric: float
) -> MatrixCell:
    """Write a cell's result by hand."""
    cell = MatrixCell(ROWS[row], column, seed)
    values: dict[str, Any] = {
        "metric": "MSE", "value": 0.05, "low": 0.04, "high": 0.06, "floor": 0.07,
        "main": True, "lower_is_stronger": True, **metric,
    }  # fmt: skip
    facts: Mapping[str, Any] = {
        "accuracy": 0.5 + seed / 10, "uplink_bytes": 1e6, "state": state, "reason": "it lacks",
        "metrics": [values] if state == "done" else [],
    }  # fmt: skip
    write_json(cell.file(place), facts)
    return cell


def of(measured: list[Result], method: str, attack: str = "decoder") -> Result:
    return next(r for r in measured if (r.method, r.attack) == (method, attack))


def test_results_are_means_over_seeds_with_their_widest_interval(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    cells = [
        keep(place, "PSL", DECODER, 0, value=0.02, low=0.01, high=0.03),
        keep(place, "PSL", DECODER, 1, value=0.04, low=0.02, high=0.05, floor=0.09),
        keep(place, "CutMixSL", DECODER, 0),
    ]
    measured = results(cells, place)
    psl = of(measured, "PSL")
    assert (psl.value, psl.low, psl.high, psl.seeds) == (0.03, 0.01, 0.05, 2)
    assert psl.floor == pytest.approx(0.08)
    assert of(measured, "PSL", "none").value == pytest.approx(0.55)
    assert json.loads(json.dumps([r.to_json() for r in measured]))[0].keys() == {
        "method", "attack", "adversary", "metric", "value", "low", "high", "floor", "passed_gate",
        "stopped_after",
    }  # fmt: skip
    text = to_markdown(measured)
    assert text.startswith("| method | seeds | top-1 | uplink/epoch | decoder, server |\n")
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line[:1] == "|"}
    assert rows["PSL"].endswith("| 0.03 [0.01, 0.05] / 0.08 |")
    assert rows["PSL"].startswith("| PSL | 2 | 55.0 % [50.0 %, 60.0 %] | 1.0 MB |")
    assert rows["CutMixSL"].startswith("| CutMixSL | 1 | 50.0 % | 1.0 MB |")
    assert rows["CutMixSL"].endswith("| 0.05 [0.04, 0.06] / 0.07 |")
    single = to_markdown([result for result in measured if result.method == "CutMixSL"])
    assert single.startswith("| method | top-1 | uplink/epoch | decoder, server |\n")


@pytest.mark.parametrize(("high", "passed"), [(0.06, True), (0.08, False)])
def test_an_attack_counts_if_it_beats_its_floor_where_nothing_protects(
    high: float, passed: bool, tmp_path: Path
) -> None:
    place = place_in(tmp_path)
    keep(place, "PSL", DECODER, 0, high=high)
    strong = keep(place, "CutMixSL", DECODER, 0, high=0.041)
    (result,) = [r for r in results([strong], place) if r.attack == "decoder"]
    assert result.passed_gate is passed
    (row,) = [line for line in to_markdown([result]).splitlines() if "CutMixSL" in line]
    assert ("(?)" in row) is not passed


def test_where_the_unprotected_method_has_no_such_attack_the_strongest_row_decides(
    tmp_path: Path,
) -> None:
    place = place_in(tmp_path)
    column = next(c for c in COLUMNS if c.attack == "attribute")
    judged: dict[str, Any] = {
        "value": 0.9,
        "low": 0.8,
        "high": 1.0,
        "floor": 0.6,
        "lower_is_stronger": False,
    }
    keep(place, "PSL", column, 0, state="not applicable")
    keep(place, "CutMixSL", column, 0, **judged)
    weak = keep(place, "CutMixSFL", column, 0, **{**judged, "low": 0.5})
    measured = results([weak, MatrixCell(ROWS["PSL"], column, 0)], place)
    assert of(measured, "CutMixSFL", "attribute").passed_gate is True
    lacks = of(measured, "PSL", "attribute")
    assert (lacks.metric, lacks.value, lacks.reason) == ("not applicable", None, "it lacks")


def test_two_rows_run_through_and_only_once(tmp_path: Path) -> None:
    """All parts run at scale smoke: victims, attacks, scores; a second run does nothing."""
    place = place_in(tmp_path)
    cells = choose(
        "PSL:decoder, PSL:linear, PSL:simulate, PSL:membership, CutMixSL:attribute, "
        "CutMixSL:decoder, CutMixSL:labels-gradient, CutMixSL:labels-cluster, "
        "CutMixSL:labels-peer, PSL:separate",
        [0],
    )
    reports: list[TaskProgress] = []
    failures = run_tasks(tasks_of(cells, place), place, apart=False, on_progress=reports.append)
    assert not failures
    assert not tasks_of(cells, place)
    measured = results(cells, place)
    linear = of(measured, "PSL", "linear")
    assert linear.value is not None
    assert linear.value < 1e-5
    assert linear.passed_gate is True
    assert of(measured, "PSL", "separate").metric == "not applicable"
    # In PSL, the upper segment gets exactly what the server gets.
    both = [r for r in measured if (r.method, r.attack, r.metric) == ("PSL", "decoder", "MSE")]
    assert both[0].value == both[1].value
    top1 = of(measured, "PSL", "none")
    assert 0 <= (top1.value or -1) <= 1
    assert not any(r.value is not None and math.isnan(r.value) for r in measured)
    assert all(r.stopped_after is None for r in measured)
    samples = next(c.folder(place) for c in cells if c.column.attack == "linear")
    table = pq.read_table(next(samples.rglob("samples.parquet")))
    assert set(table["trained"].to_pylist()) == {True, False}


def test_an_attack_that_its_time_limit_ended_is_marked(tmp_path: Path) -> None:
    """It must not look like one of full effort."""
    place = place_in(tmp_path)
    place = replace(place, size=replace(SIZES["smoke"], seconds=0.0))
    cells = choose("PSL:decoder", [0])
    assert not run_tasks(tasks_of(cells, place), place, apart=False, on_progress=lambda _: None)
    measured = results(cells, place)
    (seconds,) = {r.to_json()["stopped_after"] for r in measured if r.attack == "decoder"}
    assert seconds >= 0  # also where the upper segment gets the same
    (row,) = [line for line in to_markdown(measured).splitlines() if line.startswith("| PSL")]
    assert all(cell.endswith(" (stopped) ") for cell in row.split("|")[4:-1])


@pytest.mark.parametrize(
    ("apart", "reason"), [(False, "there is no"), (True, "this failed before:")]
)
def test_a_victim_that_cannot_be_trained_costs_its_own_cells_only(
    apart: bool, reason: str, tmp_path: Path
) -> None:
    place = place_in(tmp_path)
    broken = replace(ROWS["PSL"], name="broken", options=(("nonsense", 1),))
    cells = [MatrixCell(broken, DECODER, 0)]
    failures = run_tasks(tasks_of(cells, place), place, apart=apart, on_progress=lambda _: None)
    assert [failure.task.kind for failure in failures] == ["victim", "attack"]
    assert "nonsense" in failures[0].words
    assert failures[1].words == f"{reason} broken: training, seed 0"


def test_a_matrix_is_below_the_home_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", "~/mine")
    place = Place(None, SIZES["cpu"], "fashion-mnist-small")
    assert place.folder.is_relative_to(Path.home() / "mine" / "attacks")
