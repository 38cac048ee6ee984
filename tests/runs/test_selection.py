"""Runs are chosen by id, "latest" and label."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.selection import select, select_one


def _labelled(label: str, home: Path) -> Run:
    return Run.create({"label": label}, name="run", home=home)


def test_a_label_selects_all_its_runs_and_each_run_comes_once(tmp_path: Path) -> None:
    twice = [_labelled("twice", tmp_path), _labelled("twice", tmp_path)]
    once = _labelled("once", tmp_path)
    chosen = select([once.id, "twice", once.id], tmp_path)
    assert [run.id for run in chosen] == [once.id, *(run.id for run in twice)]


@pytest.mark.parametrize("by", ["id", "label", "latest"])
def test_one_run_is_chosen_by_its_id_its_label_or_as_the_newest(tmp_path: Path, by: str) -> None:
    run = _labelled("with space", tmp_path)
    names = {"id": run.id, "label": "with space", "latest": "latest"}
    assert select_one(names[by], tmp_path).id == run.id


def test_a_label_of_several_runs_chooses_none_and_their_ids_are_named(tmp_path: Path) -> None:
    ids = [_labelled("seeds", tmp_path).id for _ in range(2)]
    with pytest.raises(
        RunError, match="2 runs have the label 'seeds'; give the id of one"
    ) as caught:
        select_one("seeds", tmp_path)
    assert str(caught.value).endswith(f"newest first: {ids[1]}, {ids[0]}")


def test_an_id_and_latest_come_before_a_label(tmp_path: Path) -> None:
    """Wherever runs are chosen, one or several."""
    run = Run.create({}, name="run", home=tmp_path)
    config = run.path / "config.json"
    config.write_text('{"label": "latest"}', encoding="utf-8")  # by hand
    newest = _labelled(run.id, tmp_path)
    for name, chosen in (("latest", newest), (run.id, run)):
        assert select_one(name, tmp_path).id == chosen.id
        assert [each.id for each in select([name], tmp_path)] == [chosen.id]


def test_a_run_cannot_be_labelled_latest(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="label is 'latest', which means the newest run; choose"):
        _labelled("latest", tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["nobody", "no such label"])
def test_a_name_of_no_run_is_refused(tmp_path: Path, name: str) -> None:
    _labelled("mine", tmp_path)
    with pytest.raises(RunError, match=name):
        select_one(name, tmp_path)
    with pytest.raises(RunError, match=name):
        select([name], tmp_path)
