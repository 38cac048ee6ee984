"""Clients that upload what they were not asked for."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from flwr_splitmix.events import StepDone
from flwr_splitmix.mixers import Upload
from flwr_splitmix.observers import Observer
from flwr_splitmix.testing.agreement import check_same_tensors
from tests.e2e.flower_run import Deployed, measured
from tests.faults.faulty_run import APP, config_of, run_here

REASONS = {
    "nan": "uploaded NaN or infinite numbers",
    "shape": ", 2) of torch.float64, expected (4, ",
    "dtype": "of torch.float32, expected",
    "many": "uploaded (4, 7, 3) of torch.float64, expected",
    "passes": "uploaded no list of 1 smashed tensor",
}


def test_what_a_client_was_not_asked_for_costs_it_the_round_and_nobody_else(
    deployed: Deployed, home: Path, tmp_path: Path, app: ModuleType
) -> None:
    """Real nodes; client 1 does something else in each round, and is asked again in the next."""
    faults = [*REASONS, "foreign"]
    values = {"rounds": len(faults), "steps": 4, "faults": ",".join(faults)}
    ended = deployed.run(values, home, app=APP)
    assert ended.status == "finished:completed", ended.log
    assert ended.run is not None
    assert [row["clients_alive"] for row in ended.run.rows] == [2] * len(REASONS) + [3]
    for server_round, reason in enumerate(REASONS.values(), start=1):
        (warning,) = [
            line
            for line in ended.log.splitlines()
            if f"round {server_round} continued without client 1: " in line
        ]
        assert reason in warning
    whole = run_here(app, values, tmp_path)
    assert measured(ended.run) == measured(whole)
    check_same_tensors(
        "the server's state",
        whole.checkpoints.load().tensors,
        ended.run.checkpoints.load().tensors,
    )


class Foreign(Observer):
    """Looks at what the mixer makes of patches that a client was not asked for."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.looked_at = 0

    def on_step(self, event: StepDone) -> None:
        """Compare each place of each mixture with the upload that belongs there."""
        assert event.plan is not None
        assert event.mixed is not None
        batch = event.plan.shape.batch
        for row, source in enumerate(event.mixed.sources):
            mixture = event.mixed.smashed[row * batch : (row + 1) * batch]
            foreign = (mixture == FOREIGN_VALUE).all(2).all(0)
            for member in source.members:
                picked = member.share.pick(mixture)
                upload = event.uploads[member.client]
                assert isinstance(upload, Upload)
                (smashed,) = upload.smashed
                assert smashed is not None
                assert torch.equal(picked, smashed)
                if member.client == self.client:
                    assert int(foreign.sum()) == picked.shape[1]
                    self.looked_at += picked.shape[1]
            if self.client not in {member.client for member in source.members}:
                assert not foreign.any()


FOREIGN_VALUE = 101.0


def test_patches_that_are_not_its_own_can_only_stand_in_its_own_places(
    app: ModuleType, tmp_path: Path
) -> None:
    """An upload says nothing about where it belongs: the plan does, and only the server has it.

    What a client puts into its own share is its own affair, as its data are; no check can tell.
    """
    values = config_of(APP, rounds=1, steps=6, faults="foreign")
    observer = Foreign(app.MISBEHAVES)
    strategy = app.make_strategy(values, None, None)
    strategy.observers.append(observer)
    strategy.fit(app.make_clients(values), 1)
    assert observer.looked_at > 0
    assert [row["clients_alive"] for row in strategy.rows] == [3]
