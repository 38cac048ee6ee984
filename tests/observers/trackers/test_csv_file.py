"""The CSV tracker: a row for each round, appended, whatever happened before."""

from __future__ import annotations

import csv
import json
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


def make_csv_tracker(folder: Path) -> Tracker:
    (tracker,) = make_trackers("csv")
    tracker.folder = folder
    return tracker


def tracked(folder: Path, rows: Sequence[Mapping[str, float]], first: int = 1) -> Tracker:
    """Track rounds of these numbers in a folder."""
    tracker = make_csv_tracker(folder)
    tracker.on_start(RunStarted("PSL", 9, first))
    for number, values in enumerate(rows, first):
        tracker.numbers(values, number)
    return tracker


def test_csv_is_appended_to(tmp_path: Path) -> None:
    """The rows before are not written again."""
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


@pytest.mark.parametrize("remaining_bytes", [1, 5])
def test_csv_goes_on_after_a_line_that_a_crash_left_unfinished(
    tmp_path: Path, remaining_bytes: int
) -> None:
    """A number that lacks its last digits is another number."""
    tracked(tmp_path, [{"loss": 1.125}, {"loss": 2.125}])
    file = tmp_path / "metrics.csv"
    file.write_bytes(file.read_bytes()[: remaining_bytes - len("2,2.125\n")])
    tracked(tmp_path, [{"loss": 3.125}], first=3)
    assert [(row["round"], row["loss"]) for row in table(tmp_path)] == [
        ("1", "1.125"),
        ("3", "3.125"),
    ]


@pytest.mark.parametrize("end", [b"2,2.125", b"2,2.1", b"2"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_csv_keeps_the_newest_round_of_a_run_whatever_its_line_ends_with(
    end: bytes, newline: bytes, tmp_path: Path
) -> None:
    """An editor may leave out the end of the last line, a crash also digits."""
    before = tracked(tmp_path, [{"loss": 1.125}, {"loss": 2.125}])
    file = tmp_path / "metrics.csv"
    file.write_bytes(newline.join([b"round,loss", b"1,1.125", end]))
    resumed = make_csv_tracker(tmp_path)
    resumed.restore(json.loads(json.dumps(before.state())))
    resumed.on_start(RunStarted("PSL", 9, 3))
    resumed.numbers({"loss": 3.125}, 3)
    assert file.read_text() == "round,loss\n1,1.125\n2,2.125\n3,3.125\n"


def test_csv_saved_by_an_editor_during_the_run_keeps_its_last_line(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, [{"loss": 1.0}])
    (tmp_path / "metrics.csv").write_text("round,loss\n1,1")
    tracker.numbers({"loss": 2.0}, 2)
    assert (tmp_path / "metrics.csv").read_text() == "round,loss\n1,1\n2,2\n"


def test_csv_that_was_removed_begins_anew(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, [{"loss": 1.0}])
    (tmp_path / "metrics.csv").unlink()
    tracker.numbers({"loss": 2.0}, 2)
    assert table(tmp_path) == [{"round": "2", "loss": "2"}]


def test_csv_goes_on_after_a_spreadsheet_has_marked_it_as_utf8(tmp_path: Path) -> None:
    tracked(tmp_path, [{"loss": 1.0}, {"loss": 2.0}])
    file = tmp_path / "metrics.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    tracked(tmp_path, [{"loss": 3.0}], first=3)
    assert file.read_text() == "round,loss\n1,1\n2,2\n3,3\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfround;loss\r\n1;1\r\n",
        b"loss\n1\n",
        b"round,loss\nfirst,1\n",
        b"round,loss\n\xff,1\n",
        b"round,loss\ninf,1\n",
        b"round,loss\n1,0,5\n",
        b"loss,round\n1\n",
        b"round,loss\rno line ends here",
    ],
)
def test_csv_that_it_cannot_read_is_set_aside(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run can be resumed all the same."""
    file = tmp_path / "metrics.csv"
    (tmp_path / "metrics-set-aside-1.csv").write_text("from an earlier time")
    file.write_bytes(content)
    tracked(tmp_path, [{"loss": 3.0}], first=3)
    assert file.read_text() == "round,loss\n3,3\n"
    aside = tmp_path / "metrics-set-aside-2.csv"
    assert aside.read_bytes() == content
    (warning,) = caplog.messages
    assert warning.startswith(f"{file} is not a table that this tracker wrote (")
    assert f"it is now {aside}" in warning


def test_csv_that_was_saved_anew_in_between_is_set_aside(tmp_path: Path) -> None:
    tracker = tracked(tmp_path, [{"loss": 1.0}])
    (tmp_path / "metrics.csv").write_text("round;loss\n1;1\n")
    tracker.numbers({"loss": 2.0, "accuracy": 0.5}, 2)
    assert table(tmp_path) == [{"round": "2", "loss": "2", "accuracy": "0.5"}]
    assert (tmp_path / "metrics-set-aside-1.csv").read_text() == "round;loss\n1;1\n"


def test_csv_keeps_every_digit_of_bytes(tmp_path: Path) -> None:
    """Totals of megabytes are those of the metrics, with more than six digits."""
    (tracker,) = make_trackers("csv")
    tracker.folder = tmp_path
    tracker.on_start(RunStarted("PSL", 1, 1))
    tracker.numbers({"uplink_bytes_total": 369_123_457.0, "loss": 2.25}, 1)
    with (tmp_path / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row == {"round": "1", "uplink_bytes_total": "369123457", "loss": "2.25"}
