"""The progress file: whole at any time, gone with the run, and never a reason to stop."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.events import RoundBegun, RoundDone, RunEnded, RunStarted, StepDone
from flwr_splitmix.observers import progress
from flwr_splitmix.observers.progress import FILE, ProgressFile


def facts(folder: Path) -> dict[str, int]:
    read: dict[str, int] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return read


def step(number: int) -> StepDone:
    return StepDone(server_round=3, number=number, uploads={}, gradients={})


def test_it_says_round_step_and_how_many_steps_the_last_round_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    watching = ProgressFile(tmp_path)
    watching.on_start(RunStarted("PSL", num_rounds=5, first_round=3))
    assert facts(tmp_path) == {"rounds": 5, "round": 2, "steps_done": 0, "steps": 0}
    watching.on_begin(RoundBegun(3, {}, True, {}))
    watching.on_step(step(0))
    watching.on_step(step(1))
    assert facts(tmp_path) == {"rounds": 5, "round": 3, "steps_done": 2, "steps": 0}
    watching.on_round(
        RoundDone(
            server_round=3, num_rounds=5, seconds=1.0, steps=7, step_seconds=0.5, clients_alive=2
        )
    )
    watching.on_begin(RoundBegun(4, {}, True, {}))
    assert facts(tmp_path) == {"rounds": 5, "round": 4, "steps_done": 0, "steps": 7}
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    watching.on_end(RunEnded(5, {}))
    assert not (tmp_path / FILE).exists()


def test_steps_between_two_looks_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 600.0)
    watching = ProgressFile(tmp_path)
    watching.on_start(RunStarted("PSL", num_rounds=1))
    watching.on_begin(RoundBegun(1, {}, True, {}))
    for number in range(100):
        watching.on_step(step(number))
    assert facts(tmp_path)["steps_done"] < 2


def test_a_file_that_cannot_be_removed_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    ProgressFile(tmp_path).on_end(RunEnded(1, {}))
    assert f"{tmp_path / FILE} cannot be removed: " in caplog.text


def test_a_disk_that_is_full_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*names: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    watching = ProgressFile(tmp_path)
    watching.on_start(RunStarted("PSL", num_rounds=1))
    assert not list(tmp_path.iterdir())
    watching.on_end(RunEnded(1, {}))


def test_a_folder_that_is_removed_does_not_come_back(tmp_path: Path) -> None:
    watching = ProgressFile(tmp_path / "gone")
    watching.on_start(RunStarted("PSL", num_rounds=1))
    assert not (tmp_path / "gone").exists()
