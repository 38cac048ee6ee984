"""`flwr run apps/vision` in the U shape as a user does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.runs.attack_recording import recording_of
from tests.apps import ushape_fit
from tests.e2e.flower_run import TINY, Runner, measured, one_thread

pytestmark = pytest.mark.slow


def test_images_are_learned_in_the_u_shape_as_in_this_process(
    runner: Runner, tmp_path: Path
) -> None:
    values = {**TINY, "strategy": "USplitFL", "depth": 3, "evaluation": "auto"}
    values["record-attacks"] = True  # what it makes must be what it makes without
    ended = runner.run(values, tmp_path / "flower")
    assert ended.status == "finished:completed", ended.details + ended.log
    run = ended.run
    assert run is not None
    assert [row["clients_alive"] for row in run.rows] == [2, 2]
    assert [row["accuracy_kind"] for row in run.rows] == ["central"] * 2
    assert run.summary is not None
    assert (run.summary["strategy"], run.summary["clients"]) == ("USplitFL", 2)
    recorded = recording_of(run)
    assert recorded is not None
    assert recorded.steps == 4
    assert run.checkpoints.load().meta["partitions"] == {"0": 2, "1": 2}
    attacked = attacked_run(run)
    assert attacked.remarks == []
    case = attacked.case("server", trained=20, held_out=10)
    first = case.view.releases[0]
    assert (first.labels, first.server_round <= 2, first.gradient is None) == (None, True, False)

    keys = {key.replace("-", "_"): value for key, value in values.items()}
    with one_thread():
        local_training = ushape_fit.fit(
            tmp_path / "here", steps_per_round=0, **{"warmup_epochs": 1.0, **keys}
        )
    assert measured(run) == measured(local_training.run)
