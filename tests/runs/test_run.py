"""A run found again is the run that was written; a run that cannot be found says so."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.places import run_paths


def test_a_run_opened_again_has_its_config_rows_and_summary(tmp_path: Path) -> None:
    run = Run.create({"strategy": "psl", "mixer": {"k": 2}}, name="PSL, two!", home=tmp_path)
    run.append_round({"round": 1, "loss": 2.5, "accuracy_kind": "test set", "uplink_bytes": 2**40})
    run.write_summary({"top1": 0.5})
    again = Run.open(run.id, home=tmp_path)
    assert re.fullmatch(r"\d{8}-\d{6}-psl-two-[0-9a-f]{4}", run.id)
    assert run.path == tmp_path / "runs" / run.id
    assert again.config == run.config == {"strategy": "psl", "mixer": {"k": 2}}
    assert again.rows == run.rows
    assert again.summary == {"top1": 0.5}
    assert again.status == "finished"
    assert again.clients_dir == run.path / "clients"
    assert again.checkpoints.path == run.path / "checkpoints"


def test_a_run_that_is_removed_while_runs_are_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [Run.create({}, name=f"run {number}", home=tmp_path) for number in range(3)]
    look = Path.stat

    def last_look(path: Path, **options: Any) -> os.stat_result:
        stat_result = look(path, **options)
        if path.parent == runs[1].path:
            shutil.rmtree(path.parent)
        return stat_result

    monkeypatch.setattr(Path, "stat", last_look)
    listed = run_paths(tmp_path / "runs")
    assert {runs[0].path, runs[2].path} <= set(listed)


def test_a_run_that_is_closed_to_this_user_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message does not name the folder of all runs. Root may read everything."""
    runs = [Run.create({}, name=f"run {number}", home=tmp_path) for number in range(2)]
    look = Path.stat

    def closed(path: Path, **options: Any) -> os.stat_result:
        if path.parent == runs[0].path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", closed)
    assert [run.id for run in Run.all(tmp_path)] == [runs[1].id]
    assert f"skipped a run: cannot read {runs[0].path}: Permission denied" in caplog.text
    with pytest.raises(RunError, match=f"cannot read .*{runs[0].id}: Permission denied"):
        Run.open(runs[0].id, home=tmp_path)


def test_links_that_lead_nowhere_and_files_are_no_runs(tmp_path: Path) -> None:
    run, folder = Run.create({}, name="run", home=tmp_path), tmp_path / "runs"
    (folder / "file").touch()
    (folder / "empty").mkdir()
    (folder / "itself").symlink_to("itself")
    (folder / "folder" / "config.json").mkdir(parents=True)
    assert run_paths(folder) == [run.path]


@pytest.mark.parametrize(
    "name", ["a copy of a run", "läufe-ab12", ".hidden", "-dash", "a..b", "a\\b"]
)
def test_a_run_is_found_by_the_name_that_its_folder_was_given(tmp_path: Path, name: str) -> None:
    run = Run.create({}, name="run", home=tmp_path)
    run.path.rename(run.path.with_name(name))
    assert [each.id for each in Run.all(tmp_path)] == [name]
    assert Run.open(name, home=tmp_path).id == name


def test_a_run_whose_name_commands_the_terminal_is_found_as_it_is_listed(tmp_path: Path) -> None:
    run = Run.create({}, name="run", home=tmp_path)
    moved = run.path.rename(run.path.with_name("a\x1b[31m"))
    (listed,) = Run.all(tmp_path)
    assert listed.id == "a\\x1b[31m"
    assert Run.open(listed.id, home=tmp_path).path == moved


def test_a_run_in_a_folder_named_latest_is_skipped_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other, run = (Run.create({}, name="run", home=tmp_path) for _ in range(2))
    run.path.rename(run.path.with_name("latest"))
    assert [each.id for each in Run.all(tmp_path)] == [other.id]
    assert Run.open("latest", home=tmp_path).id == other.id
    (warning,) = {record.getMessage() for record in caplog.records}
    assert warning.startswith(f"skipped a run: {tmp_path / 'runs'}")
    assert warning.endswith("'latest' stands for the newest run; rename the folder")


def test_values_keep_their_kind_and_missing_ones_are_none(tmp_path: Path) -> None:
    run = Run.create({}, name="kinds", home=tmp_path)
    run.append_round({"round": 1, "loss": np.float64(0.5), "steps": 10, "slowest_node": "node-1"})
    run.append_round({"round": 3, "loss": float("nan"), "uplink_bytes": 3, "extra": 7})
    first, second = Run.open(run.id, home=tmp_path).rows
    assert (first["steps"], type(first["steps"])) == (10, int)
    assert (second["uplink_bytes"], type(second["uplink_bytes"])) == (3, int)
    assert (first["slowest_node"], second["slowest_node"]) == ("node-1", None)
    assert (first["accuracy"], first["extra"], second["extra"]) == (None, None, 7)
    assert first["loss"] == 0.5
    assert np.isnan(second["loss"])  # diverged is not the same as not measured


def test_a_flower_node_id_of_64_bits_is_kept(tmp_path: Path) -> None:
    run = Run.create({}, name="node", home=tmp_path)
    run.append_round({"round": 1})
    run.append_round({"round": 2, "slowest_node": 2**64 - 1})
    run.append_round({"round": 3, "slowest_node": 5})
    nodes = [row["slowest_node"] for row in Run.open(run.id, home=tmp_path).rows]
    assert nodes == [None, 2**64 - 1, 5]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"round": 4}, "round 4 cannot follow round 5"),
        ({"round": 5}, "round 5 cannot follow round 5"),
        ({"round": 6.0}, "integer 'round'"),
        ({"round": True}, "integer 'round'"),
        ({"loss": 1.0}, "integer 'round'"),
        ({"round": 6, "loss": "low"}, "column 'loss'"),
        ({"round": 6, "steps": 1.5}, "column 'steps'"),
        ({"round": 6, "accuracy_kind": 3}, "column 'accuracy_kind'"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_changes_nothing(
    tmp_path: Path, row: dict[str, float | int | str | None], reason: str
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    run.append_round({"round": 5, "loss": 1.0})
    before = run.rows
    with pytest.raises(RunError, match=re.escape(reason)):
        run.append_round(row)
    assert run.rows == before == Run.open(run.id, home=tmp_path).rows


def test_rows_handed_out_are_copies(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    run.append_round({"round": 1, "loss": 1.0})
    run.rows[0]["loss"] = 9.0
    assert run.rows[0]["loss"] == 1.0


def test_rewinding_drops_later_rounds_and_the_summary(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for number in (1, 2, 3, 4):
        run.append_round({"round": number})
    run.write_summary({})
    run.rewind(2)
    assert [row["round"] for row in Run.open(run.id, home=tmp_path).rows] == [1, 2]
    assert (run.status, run.summary) == ("stopped", None)
    run.append_round({"round": 3})
    run.rewind(0)
    assert run.rows == Run.open(run.id, home=tmp_path).rows == []
    run.append_round({"round": 1})


def test_runs_are_listed_in_the_order_they_were_made(tmp_path: Path) -> None:
    # Within one second the ids say nothing about the order: names and digits are arbitrary.
    ids = [Run.create({}, name=name, home=tmp_path).id for name in "zmakzmak"]
    (tmp_path / "runs" / "no-config").mkdir()
    (tmp_path / "runs" / "a-file").write_text("")
    assert [run.id for run in Run.all(tmp_path)] == ids
    assert len(set(ids)) == len(ids)
    assert Run.open("latest", home=tmp_path).id == ids[-1]


def test_an_older_run_copied_here_later_stays_older(tmp_path: Path) -> None:
    newest = Run.create({}, name="new", home=tmp_path)
    copied = tmp_path / "runs" / "20200101-000000-old-0000"
    copied.mkdir()
    (copied / "config.json").write_text("{}")
    assert Run.open("latest", home=tmp_path).id == newest.id


def test_a_damaged_config_is_skipped_in_the_list_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = (Run.create({}, name=name, home=tmp_path) for name in ("good", "bad"))
    (bad.path / "config.json").write_text('{"strat')
    assert [run.id for run in Run.all(tmp_path)] == [good.id]
    assert str(bad.path / "config.json") in caplog.text
    with pytest.raises(RunError, match=r"config\.json"):
        Run.open(bad.id, home=tmp_path)


def test_an_unknown_id_lists_the_ten_newest(tmp_path: Path) -> None:
    ids = [Run.create({}, name="x", home=tmp_path).id for _ in range(12)]
    with pytest.raises(RunError) as caught:
        Run.open("20200101-000000-x-0000", home=tmp_path)
    listed = re.findall(r"\d{8}-\d{6}-x-[0-9a-f]{4}", str(caught.value).partition("newest")[2])
    assert listed == ids[:1:-1]


@pytest.mark.parametrize("run_id", ["latest", "nosuchrun"])
def test_an_empty_home_says_where_it_looked(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(RunError, match=re.escape(str(tmp_path / "runs"))):
        Run.open(run_id, home=tmp_path)
    assert Run.all(tmp_path) == []


@pytest.mark.parametrize("run_id", ["..", "../runs/{id}", "{id}/", "a\\b", ".", "", "{id}/../{id}"])
def test_an_id_that_is_a_path_is_refused(tmp_path: Path, run_id: str) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with pytest.raises(RunError, match="not a path"):
        Run.open(run_id.format(id=run.id), home=tmp_path)


def test_an_absolute_path_is_refused(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with pytest.raises(RunError, match="not a path"):
        Run.open(str(run.path), home=tmp_path)


def test_home_is_the_argument_then_the_environment_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path / "environment"))
    assert Run.create({}, name="x", home=tmp_path / "given").path.parents[1] == tmp_path / "given"
    assert Run.create({}, name="x").path.parents[1] == tmp_path / "environment"
    monkeypatch.delenv("SPLITMIX_HOME")
    assert Run.create({}, name="x").path.parents[1] == tmp_path / "user" / ".splitmix"


def test_a_config_that_is_not_plain_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"config has a set at \['data'\]\['sizes'\]; it must consist"
    ):
        Run.create({"data": {"sizes": {1, 2}}}, name="x", home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_config_may_have_numbers_of_numpy(tmp_path: Path) -> None:
    run = Run.create({"lr": np.float32(0.5), "sizes": (np.int64(3),)}, name="x", home=tmp_path)
    assert Run.open(run.id, home=tmp_path).config == {"lr": 0.5, "sizes": [3]}


def test_a_run_of_odd_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="name is an int; expected a text"):
        Run.create({}, name=3, home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config is None; expected a dictionary"):
        Run.create(None, name="x", home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="has 201 characters; the most is 200"):
        Run.create({}, name="x" * 201, home=tmp_path)
    assert list(tmp_path.iterdir()) == []
    Run.create({}, name="x" * 200, home=tmp_path)


def test_a_name_without_letters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="letter or a digit"):
        Run.create({}, name="../..", home=tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 but not really PAR1"])
def test_damaged_metrics_are_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / "metrics.parquet").write_bytes(content)
    with pytest.raises(RunError, match=r"metrics\.parquet"):
        run.append_round({"round": 1})
    assert (run.path / "metrics.parquet").read_bytes() == content
