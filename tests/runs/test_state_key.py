"""The secret by which nodes know a run again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flwr_splitmix.runs import Run, RunError, state_key
from flwr_splitmix.runs.state_key import FILE


def test_a_run_keeps_the_key_that_is_drawn_when_one_is_first_asked(tmp_path: Path) -> None:
    run, other = (Run.create({}, name="x", home=tmp_path) for _ in range(2))
    assert not (run.path / FILE).exists()
    key = run.state_key()
    assert len(bytes.fromhex(key)) == 16
    assert Run.open(run.id, home=tmp_path).state_key() == key != other.state_key()


def test_only_the_owner_may_read_it_and_it_is_in_no_other_file(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    key = run.state_key()
    assert (run.path / FILE).stat().st_mode & 0o777 == 0o600
    others = [path for path in run.path.rglob("*") if path.is_file() and path.name != FILE]
    assert others
    assert not any(key.encode() in path.read_bytes() for path in others)


def test_a_key_that_cannot_be_kept_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full cannot be made otherwise."""

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run.create({}, name="x", home=tmp_path)
    monkeypatch.setattr(state_key, "write_atomic", full)
    with pytest.raises(RunError, match=r"state-key cannot be written: No space .*; nodes would"):
        run.state_key()


def test_a_folder_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / "config.json").unlink()
    run.path.rmdir()
    with pytest.raises(RunError, match="state-key cannot be written"):
        run.state_key()
    assert not run.path.exists()
