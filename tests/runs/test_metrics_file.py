"""The metrics of a run on disk."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flwr_splitmix.runs import Run, RunError, metrics_file
from flwr_splitmix.runs.metrics_file import MetricsFile

THREADS_OF_A_READER = """
import sys
from pathlib import Path
import pyarrow.parquet
from flwr_splitmix.runs.metrics_file import read_rows

tasks = Path("/proc/self/task")
before = set(tasks.iterdir())
assert len(read_rows(Path(sys.argv[1]))) == 2
print(len(set(tasks.iterdir()) - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_reading_starts_no_thread(tmp_path: Path) -> None:
    """A process that ends while Arrow's threads start is aborted: 69 of 720 runs."""
    for number in (1, 2):
        MetricsFile(tmp_path).append({"round": number, "loss": 0.5})
    started = subprocess.run(
        [sys.executable, "-c", THREADS_OF_A_READER, tmp_path / "metrics.parquet"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout == "0\n"


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 1 / number, "by_client": f'{{"0": {number}}}', **more}


def rounds(metrics: MetricsFile) -> list[int]:
    return [row["round"] for row in metrics.rows]


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """Return a run's file of newest rows, which has round 21 of 21."""
    metrics = MetricsFile(tmp_path)
    for number in range(1, 22):
        metrics.append(row(number))
    return tmp_path / "metrics.jsonl"


def test_a_round_is_on_the_disk_though_the_parquet_file_is_rarely_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewritten in each round, it would take 352 ms after 400 rounds with 1,000 clients."""
    written: list[int] = []
    really = metrics_file.as_parquet

    def counted(table: Any) -> bytes:
        written.append(len(table))
        return really(table)

    monkeypatch.setattr(metrics_file, "as_parquet", counted)
    metrics = MetricsFile(tmp_path)
    for number in range(1, 81):
        metrics.append(row(number))
        assert MetricsFile(tmp_path).rows == metrics.rows
        assert rounds(metrics) == list(range(1, number + 1))
    assert sum(written) < 20 * 80
    metrics.complete()
    assert pq.read_table(tmp_path / "metrics.parquet").column("round").to_pylist() == rounds(
        metrics
    )
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_crash_between_two_writes_repeats_and_loses_no_row(newest: Path) -> None:
    old = newest.read_bytes()
    metrics = MetricsFile(newest.parent)
    metrics.append(row(22))  # the first of a process is written with all
    assert not newest.exists()
    newest.write_bytes(old)
    assert rounds(MetricsFile(newest.parent)) == list(range(1, 23))
    metrics.append(row(23))
    assert rounds(MetricsFile(newest.parent)) == list(range(1, 24))
    metrics.keep(5)
    newest.write_bytes(old)
    assert rounds(MetricsFile(newest.parent)) == [1, 2, 3, 4, 5]


def test_a_line_that_a_crash_left_unfinished_is_replaced(newest: Path) -> None:
    with newest.open("ab") as file:
        file.write(b'{"after": 21, "row": {"rou')
    assert rounds(MetricsFile(newest.parent)) == list(range(1, 22))
    MetricsFile(newest.parent).append(row(22))
    assert rounds(MetricsFile(newest.parent)) == list(range(1, 23))


def test_values_keep_their_kind_whichever_file_they_are_in(newest: Path) -> None:
    metrics = MetricsFile(newest.parent)
    more: list[dict[str, Any]] = [{"loss": math.nan}, {"loss": 3}, {"loss": math.inf}]
    for number, values in enumerate([*more, {"steps": 7}, {"new": 2**63}, {"other": 2}], 22):
        metrics.append(row(number, **values))
        assert repr(MetricsFile(newest.parent).rows) == repr(metrics.rows)
    metrics.append(row(28, other=1.5))
    assert [each["other"] for each in MetricsFile(newest.parent).rows[-2:]] == [2, 1.5]
    with pytest.raises(RunError, match="'low' does not fit column 'loss'"):
        metrics.append(row(30, loss="low"))
    assert rounds(MetricsFile(newest.parent)) == rounds(metrics) == list(range(1, 29))


def test_texts_are_not_held_twice(tmp_path: Path) -> None:
    """Epsilons and norms by client are 25 kB a row with 1,000 clients."""
    metrics, rows = MetricsFile(tmp_path), [row(number) for number in range(1, 30)]
    for one in rows:
        metrics.append(dict(one))
    for stored, one in zip(metrics.rows, rows, strict=True):
        assert stored["by_client"] is one["by_client"]


def test_texts_that_are_read_are_held_once(tmp_path: Path) -> None:
    """Parquet stores equal ones once, so that copies may take much more than the file."""
    metrics = MetricsFile(tmp_path)
    for number in (1, 2):
        metrics.append({"round": number, "note": "x" * 100})
    first, second = (each["note"] for each in MetricsFile(tmp_path).rows)
    assert first is second


def test_a_value_that_is_neither_a_number_nor_text_is_refused(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    metrics.append(row(1, note=None))
    with pytest.raises(RunError, match=r"^\['x'\] does not fit column 'note': it must be a number"):
        metrics.append(row(2, note=["x"]))
    assert rounds(MetricsFile(tmp_path)) == [1]


def test_a_finished_run_has_all_rounds_in_one_file(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for number in range(1, 22):
        run.append_round(row(number))
    run.write_summary({})
    assert len(pq.read_table(run.path / "metrics.parquet")) == 21
    assert not (run.path / "metrics.jsonl").exists()


def test_a_killed_run_goes_on_with_its_newest_rounds_or_without_them(tmp_path: Path) -> None:
    killed = Run.create({}, name="x", home=tmp_path)
    for number in range(1, 22):
        killed.append_round(row(number))
    for last_round in (21, 20):
        run = Run.open(killed.id, home=tmp_path)
        run.rewind(last_round)
        assert [each["round"] for each in run.rows] == list(range(1, last_round + 1))
        run.append_round(row(last_round + 1))
        again = Run.open(killed.id, home=tmp_path)
        assert [each["round"] for each in again.rows] == list(range(1, last_round + 2))
