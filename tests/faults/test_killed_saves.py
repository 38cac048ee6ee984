"""A save that is left half done by a killed process does not stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from flwr_splitmix.files.writing import ABANDONED
from flwr_splitmix.links.node.state import forget_runs
from flwr_splitmix.runs.checkpoints import CheckpointStore, ClientStore

KILLED = """
import os, signal, sys, torch
from flwr_splitmix.runs.checkpoints import CheckpointStore, ClientStore

store = eval(sys.argv[1])(sys.argv[2])
arguments = [*map(int, sys.argv[4:]), {"w": torch.ones(10)}, {}]
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
getattr(store, sys.argv[3])(*arguments)
"""
"""Saves with a store, and is killed before the file gets its name."""

TENSORS = {"w": torch.zeros(10)}


def kill_in_save(store: CheckpointStore | ClientStore, method: str, *numbers: int) -> Path:
    """Return what a process leaves that is killed in a save."""
    before = {*store.path.rglob("*")}
    command = [
        sys.executable, "-c", KILLED, type(store).__name__, str(store.path), method,
        *map(str, numbers),
    ]  # fmt: skip
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (leftover,) = {*store.path.rglob("*")} - before
    return leftover


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_forgotten_run_leaves_nothing_of_a_killed_save(tmp_path: Path) -> None:
    """Otherwise a node would keep such a private state for good, and the run's folder with it."""
    store = ClientStore(tmp_path / "run-a")
    store.save(0, 1, TENSORS, {})
    leftover = kill_in_save(store, "save", 0, 2)
    assert leftover.name.startswith(".round-000002.safetensors.")
    age(tmp_path / "run-a", 31 * 86_400)
    forget_runs(tmp_path)
    assert files(tmp_path) == [str(leftover.relative_to(tmp_path))]  # it may still be written
    age(leftover, ABANDONED + 60)
    age(tmp_path / "run-a", 31 * 86_400)
    forget_runs(tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("method", ["save", "prune"])
def test_a_client_that_goes_on_removes_what_it_had_left(method: str, tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(0, 1, TENSORS, {})
    leftover = kill_in_save(store, "save", 0, 2)
    for seconds, exists in [(ABANDONED - 60, True), (ABANDONED + 60, False)]:
        age(leftover, seconds)
        if method == "save":
            store.save(0, 3, TENSORS, {})
        else:
            store.prune(0, [])
        assert leftover.exists() is exists
    assert store.load(0, at_most=1) is not None or method == "prune"


@pytest.mark.parametrize("killed", ["save", "save_between"])
@pytest.mark.parametrize("method", ["save", "save_between"])
def test_a_run_that_goes_on_removes_what_it_had_left(
    killed: str, method: str, tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, TENSORS, {})
    leftover = kill_in_save(store, killed, 2)
    other = tmp_path / ".notes.safetensors.0123abcd"
    other.write_text("not ours")
    for file in (leftover, other):
        age(file, ABANDONED + 60)
    getattr(store, method)(3, TENSORS, {})
    assert not leftover.exists()
    assert other.exists()
    assert store.load().round == 3
