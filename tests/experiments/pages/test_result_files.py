"""Result files: measurements are stored unchanged, by seed, without facts on the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, Experiment, ExperimentError
from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.pages.accuracy import (
    AccuracyResults,
    accuracy_results,
    with_shared_cells,
)
from flwr_splitmix.experiments.pages.attacks import PrivacyResults, privacy_results
from flwr_splitmix.experiments.pages.result_files import read_results
from flwr_splitmix.experiments.pages.results import Results
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.tables_of_papers import make_table
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.files.writing import write_json
from tests.experiments.pages.toy import SMALL, SMOKE, TOY, finish, toy
from tests.experiments.privacy.test_matrix import place_in

__all__ = ["toy"]


def export(home: Path) -> list[AccuracyResults]:
    return list(accuracy_results([TOY], [SMOKE], find_runs(home).values()))


def write(folder: Path, result: Results[Any]) -> Path:
    file = folder / result.name
    file.write_text(result.to_json(), encoding="utf-8")
    return file


def test_a_file_has_the_cells_scores_bytes_and_version_and_no_more(tmp_path: Path) -> None:
    cell = finish(tmp_path, "SFL", "n = 2", 1, 0.4125)
    (exported,) = export(tmp_path)
    assert exported.name == "toy-smoke-fashion-mnist-small.json"
    assert json.loads(exported.to_json()) == {
        "experiment": "toy",
        "scale": "smoke",
        "dataset": SMALL,
        "places": [
            {
                "row": "SFL",
                "column": "n = 2",
                "seeds": [
                    {
                        "seed": 1,
                        "cell": cell,
                        "version": "0.1.0",
                        "scores": {"top1": 0.4125},
                        "uplink_bytes_per_epoch": 5_000_000,
                        "downlink_bytes_per_epoch": 2_000_000,
                    }
                ],
            }
        ],
    }


def test_the_same_runs_in_another_order_are_the_same_file(tmp_path: Path) -> None:
    runs = [("SFL", "n = 3", 0, 0.4), ("PSL", "n = 2", 1, 0.3), ("PSL", "n = 2", 0, 0.2)]
    for at in runs:
        finish(tmp_path / "one", *at)
    for at in reversed(runs):
        finish(tmp_path / "two", *at)
    (one,), (two,) = export(tmp_path / "one"), export(tmp_path / "two")
    assert one.to_json() == two.to_json()
    assert list(one.measured_at) == [("PSL", "n = 2"), ("SFL", "n = 3")], "the table's order"


@pytest.mark.usefixtures("toy")
def test_a_table_of_a_file_that_was_read_is_that_of_the_runs(tmp_path: Path) -> None:
    for row, seed, top1 in (("PSL", 0, 0.4), ("PSL", 1, 0.43), ("SFL", 0, 0.5)):
        finish(tmp_path, row, "n = 2", seed, top1)
    (exported,) = export(tmp_path)
    write(tmp_path, exported)
    (read,) = read_results(tmp_path)
    assert read == exported
    assert isinstance(read, AccuracyResults)
    (of_runs,) = make_tables(TOY, SMOKE, tmp_path)
    assert read.table == of_runs


def test_each_data_set_is_a_file_and_other_lengths_are_none(tmp_path: Path) -> None:
    finish(tmp_path, "PSL", "n = 2", 0, 0.4)
    finish(tmp_path, "PSL", "n = 2", 0, 0.5, source="uoft-cs/cifar10")
    finish(tmp_path, "PSL", "n = 2", 1, 0.6, epochs=9)
    exported = {result.name: result for result in export(tmp_path)}
    assert exported.keys() == {
        "toy-smoke-fashion-mnist-small.json",
        "toy-smoke-uoft-cs-cifar10.json",
    }
    assert [result.count for result in exported.values()] == [1, 1]


def test_results_on_labels_of_the_other_kind_come_into_no_file(tmp_path: Path) -> None:
    finish(tmp_path, "PSL", "n = 2", 0, 0.4)
    finish(tmp_path, "PSL", "n = 2", 0, 0.5, source="fashion-mnist-multi")
    (exported,) = export(tmp_path)
    assert exported.name == "toy-smoke-fashion-mnist-small.json"


def test_seeds_come_together_and_the_newer_is_believed(tmp_path: Path) -> None:
    finish(tmp_path / "old", "PSL", "n = 2", 0, 0.40)
    finish(tmp_path / "old", "SFL", "n = 2", 0, 0.50)
    finish(tmp_path / "new", "PSL", "n = 2", 2, 0.42)
    finish(tmp_path / "new", "SFL", "n = 2", 0, 0.55)
    (old,), (new,) = export(tmp_path / "old"), export(tmp_path / "new")
    both = old.merged(new)
    values = {line.entry.place: line.values for line in both.table.lines if line.values}
    assert values == {
        ("PSL", "n = 2"): pytest.approx((40.0, 42.0)),
        ("SFL", "n = 2"): pytest.approx((55.0,)),
    }
    assert (both.count, list(both.versions)) == (3, ["0.1.0"])


def test_a_seed_of_another_cell_than_the_place_has_is_left_out(
    tmp_path: Path, toy: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed experiment has other cells, with other results."""
    finish(tmp_path, "PSL", "n = 2", 0, 0.40)
    finish(tmp_path, "SFL", "n = 2", 0, 0.50)
    write(tmp_path, export(tmp_path)[0])
    psl, *others = toy.entries
    assert psl.variant is not None
    changed = replace(psl, variant=replace(psl.variant, server_update="mean"))
    monkeypatch.setitem(EXPERIMENTS, "toy", replace(toy, entries=(changed, *others)))
    (read,) = read_results(tmp_path)
    assert list(read.measured_at) == [("SFL", "n = 2")]


@pytest.mark.usefixtures("toy")
def test_an_infinite_epsilon_is_kept(tmp_path: Path) -> None:
    finish(tmp_path, "PSL", "n = 2", 0, 0.40)
    (exported,) = export(tmp_path)
    ((place, (one,)),) = exported.measured_at.items()
    unbounded = replace(exported, measured_at={place: (replace(one, epsilon=float("inf")),)})
    write(tmp_path, unbounded)
    assert read_results(tmp_path)[0].measured_at == unbounded.measured_at


def test_what_attacks_reached_is_kept_too(tmp_path: Path) -> None:
    """Each has a floor, or a reason for no attack; the table is the same as from the cells."""
    experiment = PRIVACY_EXPERIMENTS["cutmixsl-table3"]
    place = place_in(tmp_path)
    cells = {entry.place: cell for entry, cell in experiment.cells([3])}
    first, second, *_ = cells
    metric = {
        "metric": "MSE", "value": 0.0123, "low": 0.01, "high": 0.02, "floor": 0.07,
        "main": True, "lower_is_stronger": True,
    }  # fmt: skip
    write_json(cells[first].file(place), {"state": "done", "metrics": [metric], "seconds": 9.5})
    write_json(cells[second].file(place), {"state": "not applicable", "reason": "it lacks"})
    (exported,) = privacy_results([experiment], [IMAGES.size("smoke")], tmp_path)
    file = write(tmp_path, exported)
    assert file.name == "cutmixsl-table3-smoke-fashion-mnist-small.json"
    seeds = [one for each in json.loads(file.read_text())["places"] for one in each["seeds"]]
    names = [cells[at].file(place).stem for at in (first, second)]
    assert seeds == [
        {"seed": 3, "cell": names[0], "value": 0.0123, "floor": 0.07},
        {"seed": 3, "cell": names[1], "reason": "it lacks"},
    ]
    (read,) = read_results(tmp_path)
    assert read == exported
    assert isinstance(read, PrivacyResults)
    assert read.table.lines == make_table(experiment, place).lines
    text = read.block("data/file.json")
    assert "splitmix experiment run cutmixsl-table3 --scale smoke --seeds 3" in text
    assert "| 0.0123 | 0.0700 | 1 |" in text
    file.write_text(file.read_text().replace(names[0], "of-another-attack"))
    assert [*read_results(tmp_path)[0].measured_at] == [second]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a result file"),
        ('{"experiment": "cutmixsl-table1"}', "is not a result file (KeyError('scale'))"),
        (
            '{"experiment": "cutmixsl-tabel1", "scale": "cpu", "dataset": "x", "places": []}',
            "did you mean cutmixsl-table1",
        ),
    ],
)
def test_a_file_that_is_none_is_named_with_what_to_do(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(ExperimentError) as error:
        read_results(tmp_path)
    assert words in str(error.value)
    assert str(tmp_path / "wrong.json") in str(error.value)
    assert "remove" in str(error.value)


def test_a_cell_of_one_table_comes_into_the_others_that_have_it(tmp_path: Path) -> None:
    for row, seed, top1 in (("PSL", 0, 0.4), ("PSL", 1, 0.43), ("SFL", 0, 0.5)):
        finish(tmp_path, row, "n = 2", seed, top1)
    (exported,) = export(tmp_path)
    place = ("PSL", "n = 2")
    measurement = replace(exported.measured_at[place][0], scores={"top1": 0.1})
    other = replace(
        exported, experiment=replace(TOY, name="other"), measured_at={place: (measurement,)}
    )
    first, second = with_shared_cells([exported, other])
    assert second.measured_at.keys() == exported.measured_at.keys()
    assert second.measured_at[place] == (measurement, exported.measured_at[place][1]), (
        "its own, then others'"
    )
    assert first.measured_at.keys() == exported.measured_at.keys()
    elsewhere = replace(other, dataset="another")
    assert with_shared_cells([exported, elsewhere])[1].measured_at == elsewhere.measured_at
