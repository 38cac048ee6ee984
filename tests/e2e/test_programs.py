"""Programs that README.md prints: ten lines of `fit`, a mixer of one's own, an app in Flower."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_splitmix.sandbox.flower import LocalFlower
from tests.examples.programs import ROOT, page, program, readme_files

MIXER = ROOT / "examples" / "block_cutmix.py"


@pytest.mark.slow
def test_the_readmes_ten_lines_print_the_accuracy_that_it_says(tmp_path: Path) -> None:
    code = program("README.md", ".fit(")
    assert len([line for line in code.splitlines() if line]) == 10
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    (accuracy,) = re.findall(r"prints an accuracy of (0\.\d+)", page("README.md"))
    assert float(process.stdout) == pytest.approx(float(accuracy), abs=0.02)


@pytest.mark.slow
def test_the_custom_mixer_learns() -> None:
    process = subprocess.run(
        [sys.executable, str(MIXER)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the segments are small
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    accuracy = float(process.stdout.strip().removeprefix("top-1 on the 2,000 test images: "))
    assert accuracy > 0.35  # chance is 0.1; seeds 0, 1 and 2 gave 0.47 to 0.49


@pytest.mark.slow
def test_the_readme_app_runs_in_flower(tmp_path: Path) -> None:
    app = tmp_path / "other_project"
    app.mkdir()
    for name, text in readme_files().items():
        (app / name).write_text(text, encoding="utf-8")
    with LocalFlower({"OMP_NUM_THREADS": "1"}) as flower:
        run_id = flower.submit(app, nodes=2)
        status = flower.wait(run_id, timeout=900)
        log = flower.log(run_id)
    assert status[0] == "finished:completed", log
    assert "lower segments aggregated by FedAdam" in log
    reached = re.findall(r"round 3/3 \| top-1 (0\.\d+) \(central\)", log)
    assert len(reached) == 1, log
    assert float(reached[0]) > 0.6  # chance is 0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedAvg", "CutMixSFL"])
def test_the_app_with_fedavg_learns_by_either_method(tmp_path: Path, method: str) -> None:
    app = tmp_path / "either"
    app.mkdir()
    described = readme_files()["pyproject.toml"]
    described += '\n[tool.flwr.app.config]\nmethod = "CutMixSFL"\n'
    (app / "pyproject.toml").write_text(described, encoding="utf-8")
    for name, part in (
        ("client_app", "class WholeOrSplit"),
        ("server_app", 'method"] == "FedAvg":\n        model'),
    ):
        (app / f"{name}.py").write_text(program("docs/own-app.md", part), encoding="utf-8")
    with LocalFlower({"OMP_NUM_THREADS": "1"}) as flower:
        run_id = flower.submit(app, f"method='{method}'", nodes=2)
        status = flower.wait(run_id, timeout=900)
        log = flower.log(run_id)
    assert status[0] == "finished:completed", log
    reached = re.findall(r"(?:'accuracy': '?|top-1 )(\d\.\d+(?:e-\d+)?)", log)
    assert reached, log
    assert float(reached[-1]) > 0.3, log  # chance is 0.1
