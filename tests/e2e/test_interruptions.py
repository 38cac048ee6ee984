"""What a run survives: the death of a host, of the whole machine, and `flwr stop`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix import Run
from flwr_splitmix.runs.checkpoints import ClientStore
from tests.apps import language_app
from tests.e2e.flower_run import TINY, Runner, measured, one_thread, rows, run_here
from tests.e2e.processes import Watch, descendants, end_processes, wait_for

pytestmark = pytest.mark.slow

START = 240.0
"""Seconds in which a run has finished its first rounds, on a machine that does much else."""


def test_a_host_that_is_killed_costs_its_clients_one_round(runner: Runner, tmp_path: Path) -> None:
    values = {
        **TINY,
        "strategy": "CutMixSL",
        "num-server-rounds": 3,
        "steps-per-round": 80,
        "num-hosts": 2,
        "run-dir": str(tmp_path),
    }
    run_id = runner.start(values, nodes=4)
    wait_for("the first round's end", lambda: len(rows(tmp_path)) >= 1, START)
    first = rows(tmp_path)[0]
    time.sleep(0.7)  # the clients of round 2 have attached
    hosts = descendants(runner.superlink, "RayHost")
    assert len(hosts) == 2
    assert len(rows(tmp_path)) == 1, "round 2 was over before its host could be killed"
    end_processes(hosts[:1])
    ended = runner.finish(run_id, tmp_path)

    assert ended.status == "finished:completed", ended.details
    assert ended.run is not None
    found = ended.run.rows
    assert found[0] == first
    assert [row["round"] for row in found] == [1, 2, 3]
    assert [row["steps"] for row in found] == [80, 80, 80]
    assert [row["clients_failed"] for row in found] == [0, 2, 0]
    assert [row["clients_alive"] for row in found] == [4, 2, 4]
    assert "round 2 went on without client" in ended.log
    assert "its host died" in ended.log
    # The dead host's clients go on from where round 1 left them, optimizer and data included.
    assert "has lost the state" not in ended.log
    drawn = []
    for client in range(4):
        state = ClientStore(ended.run.clients_dir).load(client)
        assert state is not None
        state_round, tensors, meta = state
        assert state_round == 3
        drawn.append(meta["drawn"])
        steps = max(float(t) for name, t in tensors.items() if name.endswith("step"))
        assert steps > 80
    assert sorted(drawn) == [160, 160, 240, 240]


def test_a_run_whose_machine_died_is_resumed_as_if_it_had_not(
    runner: Runner, tmp_path: Path
) -> None:
    values = {**TINY, "strategy": "CutMixSL", "num-server-rounds": 4, "steps-per-round": 40}
    there, here = tmp_path / "there", tmp_path / "here"
    run = killed_and_resumed(runner, values, there, nodes=4)
    check_same_run(run, run_here(values, 4, here))


def test_a_resumed_run_of_texts_is_too(runner: Runner, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        **language_app.TINY,
        "strategy": "USplitFL",
        "num_server_rounds": 4,
        "steps_per_round": 60,
        "server_threads": 1,
    }
    given = {name.replace("_", "-"): value for name, value in values.items()}
    run = killed_and_resumed(runner, given, tmp_path / "there", nodes=2, app=language_app.APP)
    with one_thread():
        whole = language_app.fit(tmp_path / "here", **values).strategy.recorder.run
    assert whole is not None
    check_same_run(run, whole)


def killed_and_resumed(
    runner: Runner, values: Mapping[str, Any], run_dir: Path, **options: Any
) -> Run:
    """Start a run of four rounds, kill it in its third, continue it to its end."""
    runner.start({**values, "run-dir": str(run_dir)}, **options)
    wait_for("the second round's end", lambda: len(rows(run_dir)) >= 2, START)
    runner.end_runs()
    broken = Run.open("latest", home=run_dir)
    assert broken.status == "unfinished"
    assert len(broken.rows) in (2, 3)

    resumed = runner.run({"resume": broken.id}, run_dir, **options)
    assert resumed.status == "finished:completed", resumed.details
    assert "resuming after round" in resumed.log
    assert [run.id for run in Run.list(run_dir)] == [broken.id]
    return Run.open(broken.id, home=run_dir)


def check_same_run(run: Run, whole: Run) -> None:
    """Compare a resumed run with one that nothing happened to: it must be that, bit for bit."""
    assert [row["round"] for row in run.rows] == [1, 2, 3, 4]
    assert run.status == "finished"
    assert measured(run) == measured(whole)
    end, expected = run.checkpoints.load(), whole.checkpoints.load()
    assert end.round == expected.round == 4
    assert end.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(end.tensors[name], tensor), name


def test_flwr_stop_loses_no_finished_round_and_leaves_no_process(
    runner: Runner, watch: Watch, tmp_path: Path
) -> None:
    values = {
        **TINY,
        "strategy": "CutMixSL",
        "num-server-rounds": 100_000,
        "steps-per-round": 20,
        "run-dir": str(tmp_path),
    }
    run_id = runner.start(values, nodes=2)
    wait_for("the second round's end", lambda: len(rows(tmp_path)) >= 2, START)
    finished = len(rows(tmp_path))
    runner.flower.flwr("stop", str(run_id))
    assert runner.flower.status(run_id)[0] == "finished:stopped"
    wait_for("the end of the stopped run", lambda: not runner.simulations(), 120)
    # Ray's two agents wait a minute for their raylet: that they end too, the session checks.
    workers = ("RayHost", "ClientAppActor", "raylet/raylet", "gcs_server")
    wait_for("the end of Ray", lambda: not any(w in p for p in watch.left() for w in workers), 30)
    run = Run.open("latest", home=tmp_path)
    assert run.status == "unfinished"
    assert [row["round"] for row in run.rows] == list(range(1, len(run.rows) + 1))
    newest = run.checkpoints.load().round
    # The last row may be written a moment before its checkpoint.
    assert finished <= newest
    assert len(run.rows) - 1 <= newest <= len(run.rows)
