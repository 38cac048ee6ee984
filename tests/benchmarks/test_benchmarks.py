"""The benchmarks run through and write what they promise; no figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def figures(benchmark: str, out: Path) -> dict[str, Any]:
    """Run one benchmark as a user does and return what it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_step_time_reports_every_figure_of_the_issue(tmp_path: Path) -> None:
    found = figures("step_time", tmp_path / "step_time.json")
    for name in ("unsplit_ms", "local_ms", "ray_ms", "messages_ms", "ray_small_ms"):
        assert found[name] > 0
        assert found["spread"][name]["min"] <= found[name] <= found["spread"][name]["max"]
    # What a step costs beyond its clients' own computing is a difference of two measurements.
    assert found["ray_overhead_ms"] < found["nearly_empty_step_ms"]
    assert found["messages_to_ray_small_ratio"] > 0
    pairs = zip(("ray_ratio", "local_ratio"), ("ray_ms", "local_ms"), strict=True)
    for ratio, name in pairs:
        assert found["spread"][ratio]["n"] == found["spread"][name]["n"]
    assert found["targets"].keys() == {
        "ray_ratio", "local_ratio", "ray_overhead_ms", "ray_small_ms",
    }  # fmt: skip
    assert found["machine"]["versions"].keys() >= {"flwr", "ray", "torch", "python"}


def test_scale_weighs_all_processes_after_every_client_has_trained(tmp_path: Path) -> None:
    found = figures("scale", tmp_path / "scale.json")
    assert found["targets"].keys() == {"step_spread", "memory_ratio"}
    for run in found["runs"]:
        assert run["clients"] >= 10
        for name in ("step_ms", "outside_steps_s", "pss_mib"):
            assert run[name]["median"] > 0
        # The ServerApp's process and the hosts are among what was weighed.
        assert {"flwr-simulation", "ray::RayHost"} <= run["pss_mib_by_process"].keys()
        assert sum(run["pss_mib_by_process"].values()) == pytest.approx(
            run["pss_mib"]["max"], rel=1e-3
        )
