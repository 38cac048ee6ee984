"""`splitmix run` on a real SuperLink: an app of `splitmix new`, and one that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from flwr_splitmix import Run
from flwr_splitmix.cli import app
from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.runs.flower_run import facts_of
from flwr_splitmix.sandbox.superlink import NAME
from tests.e2e.flower_run import TINY, Runner, rows
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MAIN = "from flwr_splitmix.cli import app; app(prog_name='splitmix')"


def new(kind: str, folder: Path) -> Path:
    invocation = CliRunner().invoke(app, ["new", kind, str(folder)])
    assert invocation.exit_code == 0, invocation.output
    return folder


def command(folder: Path, values: Mapping[str, Any], *options: str) -> list[str]:
    keys = ["--run-config", config_text(values)] if values else []
    return [sys.executable, "-c", MAIN, "run", str(folder), NAME, "--nodes", "2", *options, *keys]


def splitmix_run(
    runner: Runner, folder: Path, home: Path, values: Mapping[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, values, *options),
        env={**runner.flower.environment, "SPLITMIX_HOME": str(home)},
        cwd=home, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


def test_a_new_vision_app_runs_to_its_summary(runner: Runner, tmp_path: Path) -> None:
    folder = new("vision", tmp_path / "pets")
    process = splitmix_run(runner, folder, tmp_path, TINY, "--run-dir", "kept")
    assert process.returncode == 0, process.stdout + process.stderr
    (run,) = Run.all(tmp_path / "kept")  # a relative folder is where the command was typed
    assert run.status == "finished"
    log = (run.path / "flower.log").read_text(encoding="utf-8")
    assert "round 2/2" in log
    assert f"of the environment {sys.prefix}" in log
    assert facts_of(run)["environment"] == sys.prefix
    shown = process.stdout
    assert "round 1/2 | " in shown or "round 2/2 | " in shown
    assert "2 of 2" in shown
    assert "CutMixSFL" in shown
    assert str(run.path / "flower.log") in shown
    assert not (run.path / "progress.json").exists()


def test_a_run_that_fails_ends_with_one_sentence_and_status_1(
    runner: Runner, tmp_path: Path
) -> None:
    folder = new("own", tmp_path / "broken")
    server = folder / "server_app.py"
    raising = '    raise RuntimeError("the disk is on fire")\n'
    text = server.read_text(encoding="utf-8")
    before, main, _ = text.partition("-> None:\n")
    server.write_text(before + main + raising, encoding="utf-8")
    process = splitmix_run(runner, folder, tmp_path, {})
    assert process.returncode == 1, process.stdout
    (sentence,) = [line for line in process.stderr.splitlines() if "failed" in line]
    assert "the run failed" in sentence
    assert "the disk is on fire" in sentence
    log = Path(sentence.rpartition("Flower's log: ")[2].rstrip(")"))
    assert "the disk is on fire" in log.read_text(encoding="utf-8")
    assert "Traceback" not in process.stderr
    assert os.sep in str(log)


def test_a_signal_to_end_stops_the_run_and_leaves_no_process(
    runner: Runner, tmp_path: Path
) -> None:
    folder = new("vision", tmp_path / "long")
    started = subprocess.Popen(
        command(folder, {**TINY, "num-server-rounds": 100_000}, "--run-dir", str(tmp_path)),
        env=runner.flower.environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for("the first round", lambda: rows(tmp_path) or started.poll() is not None, 300)
        writers = psutil.Process(started.pid).children(recursive=True)
        assert writers
        started.send_signal(signal.SIGTERM)
        _, message = started.communicate(timeout=300)
    finally:
        started.kill()
    assert started.returncode == 130
    (run,) = Run.all(tmp_path)
    assert f"the run was stopped; resume it with resume='{run.id}' run-dir='{tmp_path}'" in message
    assert run.status == "stopped"  # its ServerApp has ended, so it can be resumed at once
    assert not [writer for writer in writers if writer.is_running()]
    wait_for("the end of the run", lambda: not runner.in_progress(), 120)
