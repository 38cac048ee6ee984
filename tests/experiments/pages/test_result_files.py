"""Result files: what runs measured is kept as it was, by seed, and by nothing of the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, Experiment, ExperimentError
from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.pages.result_files import ResultFile, exported, read_results
from flwr_splitmix.experiments.report import make_tables
from tests.experiments.pages.toy import SMALL, SMOKE, TOY, finish, toy

__all__ = ["toy"]


def export(home: Path) -> list[ResultFile]:
    return list(exported([TOY], [SMOKE], find_runs(home).values()))


def write(folder: Path, result: ResultFile) -> Path:
    file = folder / result.name
    file.write_text(result.to_json(), encoding="utf-8")
    return file


def test_a_file_has_the_cells_scores_bytes_and_version_and_no_more(tmp_path: Path) -> None:
    cell = finish(tmp_path, "SFL", "n = 2", 1, 0.4125)
    (made,) = export(tmp_path)
    assert made.name == "toy-smoke-fashion-mnist-small.json"
    assert json.loads(made.to_json()) == {
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
    (made,) = export(tmp_path)
    write(tmp_path, made)
    (read,) = read_results(tmp_path)
    assert read == made
    (of_runs,) = make_tables(TOY, SMOKE, tmp_path)
    assert read.table == of_runs


def test_each_data_set_is_a_file_and_other_lengths_are_none(tmp_path: Path) -> None:
    finish(tmp_path, "PSL", "n = 2", 0, 0.4)
    finish(tmp_path, "PSL", "n = 2", 0, 0.5, source="uoft-cs/cifar10")
    finish(tmp_path, "PSL", "n = 2", 1, 0.6, epochs=9)
    made = {result.name: result for result in export(tmp_path)}
    assert made.keys() == {"toy-smoke-fashion-mnist-small.json", "toy-smoke-uoft-cs-cifar10.json"}
    assert [result.count for result in made.values()] == [1, 1]


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
    assert (both.count, both.versions) == (3, ("0.1.0",))


def test_a_seed_of_another_cell_than_the_place_has_is_left_out(
    tmp_path: Path, toy: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An experiment that was changed has other cells, and their results are others."""
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
    (made,) = export(tmp_path)
    ((place, (one,)),) = made.measured_at.items()
    unbounded = replace(made, measured_at={place: (replace(one, epsilon=float("inf")),)})
    write(tmp_path, unbounded)
    assert read_results(tmp_path)[0].measured_at == unbounded.measured_at


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a result file"),
        ('{"experiment": "cutmixsl-table1"}', "is not a result file (KeyError('scale'))"),
        ('{"experiment": "cutmixsl-tabel1"}', "did you mean cutmixsl-table1"),
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
