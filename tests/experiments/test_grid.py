"""Many cells: run in sequence or in processes, each once; a failure affects no other cell."""

from __future__ import annotations

import fcntl
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import Cell, ExperimentError, grid
from flwr_splitmix.experiments.cell_runs import find_runs, held_run
from flwr_splitmix.experiments.grid import CellProgress, Workplace, run_grid, unfinished
from flwr_splitmix.runs import Run
from tests.experiments.conftest import SMALL, cell_of

FIRST, SECOND = cell_of("PSL"), cell_of("SFL")
WRONG = cell_of("NoSuchSL")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path, SMALL, "cpu")


def states(reports: list[CellProgress], cell: Cell) -> list[tuple[str, int]]:
    return [(p.state, p.rounds) for p in reports if p.cell == cell]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_does_not_stop_the_others(place: Workplace, jobs: int) -> None:
    reports: list[CellProgress] = []
    good = [FIRST, SECOND][: 3 - jobs]  # every process takes seconds to start
    failures = run_grid([WRONG, *good], place, jobs=jobs, on_progress=reports.append)
    for cell in good:
        assert states(reports, cell) == [("begun", 0), ("round", 1), ("round", 2), ("done", 2)]
    assert [failure.cell for failure in failures] == [WRONG]
    assert "unknown method 'NoSuchSL'" in failures[0].reason
    assert unfinished([*good, WRONG, *good], place.home) == [WRONG]
    runs = find_runs(place.home)
    accuracies = {p.cell.id: p.top1 for p in reports if p.state == "done"}
    for cell in good:
        summary = runs[cell.id].summary
        assert summary is not None
        assert summary["top1"] == accuracies[cell.id]


def test_a_finished_cell_is_not_run_again_and_keeps_no_weights(place: Workplace) -> None:
    run_grid([FIRST], place, on_progress=lambda progress: None)
    (run,) = Run.all(place.home)
    assert {file.name for file in run.path.iterdir()} >= {"config.json", "summary.json", "log.txt"}
    assert not list(run.path.rglob("*.safetensors"))
    reports: list[CellProgress] = []
    run_grid([FIRST], place, on_progress=reports.append)
    assert [progress.state for progress in reports] == ["done"]
    assert len(Run.all(place.home)) == 1


def test_what_a_run_logs_goes_to_its_file(
    place: Workplace, capfd: pytest.CaptureFixture[str]
) -> None:
    run_grid([FIRST, WRONG], place, on_progress=lambda progress: None)
    runs = find_runs(place.home)
    assert "round 2/2" in (runs[FIRST.id].path / "log.txt").read_text()
    assert "Traceback" in (runs[WRONG.id].path / "log.txt").read_text()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_two_processes_do_not_write_one_run(place: Workplace) -> None:
    reports: list[CellProgress] = []
    with held_run(FIRST, place.home, SMALL) as run:
        run_grid([FIRST], place, on_progress=reports.append)
    ((state, reason),) = [(p.state, p.reason) for p in reports]
    assert state == "failed"
    assert reason.startswith(f"run {run.id} is in progress: process {os.getpid()} on ")


def test_a_run_that_cannot_be_written_is_not_blamed_on_another_process(place: Workplace) -> None:
    with held_run(FIRST, place.home, SMALL) as run:
        pass
    lock = run.path / "lock"
    lock.unlink()
    lock.mkdir()
    with (
        pytest.raises(ExperimentError, match=f"{run.id} cannot be written to .*: Is a directory"),
        held_run(FIRST, place.home, SMALL),
    ):
        pass


def test_a_run_that_another_process_made_meanwhile_is_taken(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Run.create({"cell": FIRST.id}, name="other", home=place.home)
    listings = iter([{}, find_runs(place.home)])  # the other process was quicker to the lock
    with monkeypatch.context() as patch:
        patch.setattr("flwr_splitmix.experiments.cell_runs.find_runs", lambda home: next(listings))
        with held_run(FIRST, place.home, SMALL) as run:
            assert run.id == other.id
    assert [run.id for run in Run.all(place.home)] == [other.id]


def test_a_cell_that_ended_before_its_last_scores_is_not_finished(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fit` writes a summary, which the cell then completes with what averaging sends."""
    whole = Workplace(tmp_path / "whole", SMALL, "cpu")
    run_grid([SECOND], whole, on_progress=lambda progress: None)
    write, written = Run.write_summary, list[Run]()

    def killed(run: Run, summary: Any) -> None:
        written.append(run)
        if len(written) == 2:
            raise KeyboardInterrupt
        write(run, summary)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_summary", killed)
        with pytest.raises(KeyboardInterrupt):
            run_grid([SECOND], place, on_progress=lambda progress: None)
    assert unfinished([SECOND], place.home) == [SECOND]
    run_grid([SECOND], place, on_progress=lambda progress: None)
    (ours,), (theirs,) = Run.all(place.home), Run.all(whole.home)
    assert ours.summary is not None
    assert theirs.summary is not None
    for key in ("averaging_bytes", "client-costs", "top1"):
        assert ours.summary[key] == theirs.summary[key]


def test_a_run_is_held_until_the_block_ends(place: Workplace) -> None:
    with held_run(FIRST, place.home, SMALL) as run:
        path = run.path / "lock"
        with path.open("a") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def die(place: Workplace, cell: Cell, connection: Connection) -> None:
    if cell == WRONG:
        os._exit(7)
    connection.send(CellProgress(cell, "done"))


def test_a_process_that_dies_costs_its_own_cell(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "_work", die)
    reports: list[CellProgress] = []
    failures = run_grid([WRONG, FIRST], place, jobs=2, on_progress=reports.append)
    assert [failure.reason for failure in failures] == ["its process ended with exit code 7"]
    assert states(reports, FIRST) == [("done", 0)]


def test_processes_are_stopped_with_their_state_when_the_user_interrupts(place: Workplace) -> None:
    cell = cell_of("PSL", epochs=200)

    def interrupt(progress: CellProgress) -> None:
        if progress.rounds == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid([cell], place, jobs=2, on_progress=interrupt)
    run = find_runs(place.home)[cell.id]
    (saved,) = run.checkpoints.rounds()
    begun: list[CellProgress] = []

    def stop(progress: CellProgress) -> None:
        begun.append(progress)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid([cell], place, on_progress=stop)
    assert [(progress.state, progress.rounds) for progress in begun] == [("begun", saved)]
    assert 1 <= saved < 200
