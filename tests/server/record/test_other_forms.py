"""A run does not go on from a checkpoint in another form than this version writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.storage import load_tensors, save_tensors
from tests.server.record.test_refused_resumes import TOY, contents, finished, psl


@pytest.mark.parametrize("lacks", ["method", "seed-of-run", "trained", "observers", "kind"])
def test_a_checkpoint_in_another_form_is_refused(lacks: str, tmp_path: Path) -> None:
    """What it does not say would not be compared, or states go to observers by their place."""
    run = finished(tmp_path, psl)
    checkpoint = run.checkpoints.load()
    meta = {name: value for name, value in checkpoint.meta.items() if name != lacks}
    if lacks == "kind":
        meta["observers"] = [{"state": entry["state"]} for entry in meta["observers"]]
    assert meta != checkpoint.meta
    run.checkpoints.save(2, checkpoint.tensors, meta)
    before = contents(run)
    message = (
        f"round 2 lacks '{lacks}', .*: resume with the version that wrote it, or start a new run"
    )
    with pytest.raises(RunError, match=message):
        psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 3)
    assert contents(run) == before


def test_an_observers_state_in_another_form_is_refused(tmp_path: Path) -> None:
    """Keys that are missing would be taken for nothing owed."""
    run = finished(tmp_path, psl)
    checkpoint = run.checkpoints.load()
    entries = [
        {**entry, "state": {n: v for n, v in entry["state"].items() if n != "lost-rounds"}}
        for entry in checkpoint.meta["observers"]
    ]
    run.checkpoints.save(2, checkpoint.tensors, {**checkpoint.meta, "observers": entries})
    message = (
        r"a state that UnfinishedRounds cannot resume from \('lost-rounds'\): .*or start a new run"
    )
    with pytest.raises(RunError, match=message):
        psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 3)


def test_a_checkpoint_in_another_form_is_not_replaced_by_the_one_before(tmp_path: Path) -> None:
    """One without a digest must not be skipped as damaged: its charges would be forgotten."""
    run = finished(tmp_path, psl)
    file = run.path / "checkpoints" / "round-000002.safetensors"
    save_tensors(file, *load_tensors(file), digested=False)
    with pytest.raises(
        RunError, match=r"round-000002\.safetensors has no digest, .*begin a new run"
    ):
        psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 3)
