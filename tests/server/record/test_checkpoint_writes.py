"""A checkpoint that the disk refuses is kept as it was when it was to be saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flwr_splitmix.runs import Run
from flwr_splitmix.server.record.checkpoint_writes import CheckpointWrites
from flwr_splitmix.server.record.run_folder import RunFolder


@pytest.mark.parametrize("durable", [True, False])
def test_training_that_goes_on_does_not_change_an_unsaved_checkpoint(
    durable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    folder = run.path / "checkpoints"
    folder.write_text("no folder")  # nothing can be written into it
    writes = CheckpointWrites(RunFolder(run))
    weight = torch.zeros(3)
    writes.save(2, {"weight": weight}, {"mark": 1}, durable=durable)
    assert "the checkpoint could not be written" in caplog.text
    weight += 1  # as an optimizer does
    folder.unlink()
    writes.save_unsaved()
    checkpoint = run.checkpoints.load()
    assert (checkpoint.round, checkpoint.meta["mark"]) == (2, 1)
    assert checkpoint.tensors["weight"].tolist() == [0.0, 0.0, 0.0]
