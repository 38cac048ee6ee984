"""The weights of a run that has diverged are not exported."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flwr_splitmix import Run
from tests.apps.language_app import fit
from tests.runs.export.conftest import Exported

Make = Callable[..., Exported]
Splitmix = Callable[..., Result]


def spoil(run: Run, segment: str, value: float) -> str:
    """Put a number into a segment's first tensor in the newest checkpoint; return its name."""
    checkpoint = run.checkpoints.load()
    name = next(each for each in checkpoint.tensors if each.startswith(f"{segment}."))
    checkpoint.tensors[name].view(-1)[0] = value
    run.checkpoints.save(checkpoint.round, checkpoint.tensors, checkpoint.meta)
    return name.removeprefix(f"{segment}.")


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("segment", ["lower", "upper"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_vision_model(
    make: Make, splitmix: Splitmix, segment: str, earlier: bool, value: float, tmp_path: Path
) -> None:
    original = make("CutMixSFL").run
    shutil.copytree(original.path, tmp_path / "runs" / original.id)
    run = Run.open(original.id, home=tmp_path)
    if earlier:
        checkpoint = run.checkpoints.load()
        run.checkpoints.save(checkpoint.round + 1, checkpoint.tensors, checkpoint.meta)
    after = run.checkpoints.load().round
    name = spoil(run, segment, value)
    refused = splitmix("export", run.id, tmp_path / "model", "--run-dir", tmp_path)
    hint = ", or move this checkpoint out of the run's folder to export the one before"
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"run {run.id}: the {segment} segment of the checkpoint of round {after} has NaN or "
        f"infinite weights ({name}): training has diverged; train again with a lower lr"
        f"{hint if earlier else ''}\n",
    )
    assert [file.name for file in tmp_path.iterdir()] == ["runs"]


def test_a_language_model(splitmix: Splitmix, tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", task="classification")
    run = fitted.strategy.recorder.run
    assert run is not None
    spoil(run, "trunk", math.nan)
    home = run.path.parents[1]
    refused = splitmix("export", run.id, tmp_path / "model", "--run-dir", home)
    assert refused.exit_code == 1
    assert "the trunk of the checkpoint of round 1 has NaN or infinite weights" in refused.stderr
    assert not (tmp_path / "model").exists()
