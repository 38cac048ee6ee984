"""A run's directory lets the run go on from wherever its process was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import CheckpointStore
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy


def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first row was written already, and no other could follow it: the run was lost."""
    toy = Toy(tests=0)

    def fit(run: Run) -> list[Any]:
        PSL(toy.upper(), device="cpu", run=run).fit(toy.make_clients(), 2)
        return [row["loss"] for row in run.rows]

    killed = Run.create({}, name="killed", home=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "save", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(killed)
    assert len(killed.rows) == 1
    assert fit(Run(killed.path)) == fit(Run.create({}, name="whole", home=tmp_path))


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt
