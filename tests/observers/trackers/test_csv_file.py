"""The CSV tracker: a row for each round, appended, whatever happened before."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flwr_splitmix.events import RunStarted
from flwr_splitmix.observers.trackers import Tracker, make_trackers


def test_csv_has_a_repeated_round_once(tmp_path: Path) -> None:
    """A round after the newest checkpoint is done again when a run is resumed."""
    for first, losses in ((1, [1.0, 2.0, 3.0]), (3, [4.0])):
        (tracker,) = make_trackers("csv")
        tracker.folder = tmp_path
        tracker.on_start(RunStarted("PSL", 4, first))
        for number, loss in enumerate(losses, first):
            tracker.numbers({"loss": loss}, number)
    with (tmp_path / "metrics.csv").open() as file:
        rows = [(row["round"], float(row["loss"])) for row in csv.DictReader(file)]
    assert rows == [("1", 1.0), ("2", 2.0), ("3", 4.0)]


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def tracked(folder: Path, rows: Sequence[Mapping[str, float]], first: int = 1) -> Tracker:
    """Track rounds of these numbers in a folder."""
    (tracker,) = make_trackers("csv")
    tracker.folder = folder
    tracker.on_start(RunStarted("PSL", 9, first))
    for number, values in enumerate(rows, first):
        tracker.numbers(values, number)
    return tracker


def test_csv_is_appended_to(tmp_path: Path) -> None:
    """The whole file was written in every round."""
    tracker = tracked(tmp_path, [{"loss": 1.0, "accuracy": 0.25}] * 2)
    before = (tmp_path / "metrics.csv").stat()
    tracker.numbers({"loss": 0.5}, 3)
    after = (tmp_path / "metrics.csv").stat()
    assert after.st_ino == before.st_ino
    assert after.st_size == before.st_size + len("3,0.5,\n")
    assert table(tmp_path)[2] == {"round": "3", "loss": "0.5", "accuracy": ""}


def test_csv_gets_a_new_column_in_all_rows(tmp_path: Path) -> None:
    rows = [{"loss": 1.0}, {"loss": 2.0, "accuracy": 0.5}, {"accuracy": 0.75}]
    tracked(tmp_path, rows)
    text = "round,loss,accuracy\n1,1,\n2,2,0.5\n3,,0.75\n"
    assert (tmp_path / "metrics.csv").read_text() == text
    tracked(tmp_path, [{"loss": 4.0, "seconds": 8.0}], first=3)
    text = "round,loss,accuracy,seconds\n1,1,,\n2,2,0.5,\n3,4,,8\n"
    assert (tmp_path / "metrics.csv").read_text() == text


@pytest.mark.parametrize("kept", [1, 5])
def test_csv_goes_on_after_a_line_that_a_crash_left_unfinished(tmp_path: Path, kept: int) -> None:
    """A number that lacks its last digits is another number."""
    tracked(tmp_path, [{"loss": 1.125}, {"loss": 2.125}])
    file = tmp_path / "metrics.csv"
    file.write_bytes(file.read_bytes()[: kept - len("2,2.125\n")])
    tracked(tmp_path, [{"loss": 3.125}], first=3)
    assert [(row["round"], row["loss"]) for row in table(tmp_path)] == [
        ("1", "1.125"),
        ("3", "3.125"),
    ]


def test_csv_that_was_removed_begins_anew(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, [{"loss": 1.0}])
    (tmp_path / "metrics.csv").unlink()
    tracker.numbers({"loss": 2.0}, 2)
    assert table(tmp_path) == [{"round": "2", "loss": "2"}]


def test_csv_keeps_every_digit_of_bytes(tmp_path: Path) -> None:
    """It kept six digits, so that totals of megabytes were not those of the metrics."""
    (tracker,) = make_trackers("csv")
    tracker.folder = tmp_path
    tracker.on_start(RunStarted("PSL", 1, 1))
    tracker.numbers({"uplink_bytes_total": 369_123_457.0, "loss": 2.25}, 1)
    with (tmp_path / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row == {"round": "1", "uplink_bytes_total": "369123457", "loss": "2.25"}
