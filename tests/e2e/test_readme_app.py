"""The app that the README prints, pasted into an empty folder and run in Flower."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flwr_splitmix.sandbox.flower import LocalFlower
from tests.examples.programs import readme_files


@pytest.mark.slow
def test_the_readme_app_runs_in_flower(tmp_path: Path) -> None:
    app = tmp_path / "other_project"
    app.mkdir()
    for name, text in readme_files().items():
        (app / name).write_text(text, encoding="utf-8")
    with LocalFlower({"OMP_NUM_THREADS": "1"}) as flower:
        run_id = flower.submit(app, nodes=2)
        status = flower.wait(run_id, timeout=300)
        log = flower.log(run_id)
    assert status[0] == "finished:completed", log
    assert "lower segments aggregated by FedAdam" in log
    reached = re.findall(r"round 3/3 \| top-1 (0\.\d+) \(central\)", log)
    assert len(reached) == 1, log
    assert float(reached[0]) > 0.6  # chance is 0.1
