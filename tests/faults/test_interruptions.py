"""A run survives the death of a host, of the whole machine, and `flwr stop`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flwr_splitmix import Run
from flwr_splitmix.runs import Row
from flwr_splitmix.runs.checkpoints import ClientStore
from tests.apps import language_app
from tests.e2e.flower_run import TINY, Runner, measured, one_thread, rows, run_here
from tests.e2e.processes import Watch, descendants, end_processes
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

START_SECONDS = 240.0
"""Seconds in which a run has finished its first rounds, on a machine that does much else."""

NUM_ROUNDS = 12
"""Of a run that is killed after two: enough that it does not end before."""

STEPS_PER_ROUND = 240
"""Of a round: enough that a host that dies at any time mostly dies in one."""

MAX_KILLS = 5
"""Hosts to kill at most, until one has died in a round: between two rounds it costs nothing."""


@dataclass(frozen=True)
class Endless:
    """A run that would take days, one of whose hosts has died in the midst of a round.

    Attributes
    ----------
    before
        The rounds that were over when it died.
    killed
        The round that this has cost clients.
    """

    runner: Runner
    run_id: int
    home: Path
    before: list[Row]
    killed: int

    @property
    def run(self) -> Run:
        return Run.open("latest", home=self.home)


@pytest.fixture(scope="module")
def endless(superlink: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endless]:
    home = tmp_path_factory.mktemp("endless")
    values = {
        **TINY,
        "strategy": "CutMixSL",
        "num-server-rounds": 100_000,
        "steps-per-round": STEPS_PER_ROUND,
        "num-hosts": 2,
        "run-dir": str(home),
    }
    run_id = superlink.start(values, nodes=4)
    superlink.reach(run_id, "the first round's end", lambda: len(rows(home)) >= 1, START_SECONDS)
    for _ in range(MAX_KILLS):
        before = rows(home)
        killed = kill_a_host(superlink, run_id, home)
        if killed is not None:
            break
    assert killed is not None, f"{MAX_KILLS} hosts were killed, and no round lost a client"
    yield Endless(superlink, run_id, home, before, killed)
    superlink.end_runs()


def kill_a_host(runner: Runner, run_id: int, home: Path) -> int | None:
    """Kill a host while it computes; return the round that lost clients, None if none has."""
    hosts = descendants(runner.superlink, "RayHost")
    assert len(hosts) == 2
    begun, seconds = len(rows(home)), seconds_of(hosts[0])
    # Once it computes, and does more than to take its clients' states from the disk, they have
    # attached.
    wait_for("a round's steps", lambda: seconds_of(hosts[0]) > seconds + 0.12, START_SECONDS)
    end_processes(hosts[:1])
    last = len(rows(home)) + 2  # the round in progress, and one more
    runner.reach(run_id, f"the end of round {last}", lambda: len(rows(home)) >= last, START_SECONDS)
    lost = [int(row["round"]) for row in rows(home)[begun:last] if row["clients_failed"]]
    if not lost:
        return None
    after = lost[0] + 1
    runner.reach(
        run_id, f"the end of round {after}", lambda: len(rows(home)) >= after, START_SECONDS
    )
    return lost[0]


def seconds_of(process: psutil.Process) -> float:
    """Return the time of a processor that a process has had."""
    times = process.cpu_times()
    return float(times.user + times.system)


def test_a_host_that_is_killed_costs_its_clients_one_round(endless: Endless) -> None:
    killed, before = endless.killed, endless.before
    assert endless.run.rows[: len(before)] == before
    measured_rows = endless.run.rows[killed - 2 : killed + 1]
    assert [row["round"] for row in measured_rows] == [killed - 1, killed, killed + 1]
    assert [row["steps"] for row in measured_rows] == [STEPS_PER_ROUND] * 3
    assert [row["clients_failed"] for row in measured_rows] == [0, 2, 0]
    assert [row["clients_alive"] for row in measured_rows] == [4, 2, 4]
    log = endless.runner.flower.log(endless.run_id)
    assert f"round {killed} continued without client" in log
    assert "its host died" in log
    # The dead host's clients continue from where their last round left them, optimizer and data
    # included.
    assert "has lost all saved state" not in log
    drawn = []
    for client in range(4):
        state = ClientStore(endless.run.clients_dir).load(client)
        assert state is not None
        state_round, tensors, meta = state
        assert state_round > killed
        drawn.append(meta["drawn"] - STEPS_PER_ROUND * state_round)
        steps = max(float(t) for name, t in tensors.items() if name.endswith("step"))
        assert steps > STEPS_PER_ROUND
    assert sorted(drawn) == [-STEPS_PER_ROUND, -STEPS_PER_ROUND, 0, 0]


def test_flwr_stop_loses_no_finished_round_and_leaves_no_process(
    endless: Endless, watch: Watch
) -> None:
    runner = endless.runner
    finished = len(endless.run.rows)
    runner.flower.flwr.stop(endless.run_id)
    assert runner.flower.status(endless.run_id)[0] == "finished:stopped"
    wait_for("the end of the stopped run", lambda: not runner.simulations(), 120)
    # Ray's two agents wait a minute for their raylet: that they end too, the session checks.
    workers = ("RayHost", "ClientAppActor", "raylet/raylet", "gcs_server")
    wait_for("the end of Ray", lambda: not any(w in p for p in watch.left() for w in workers), 120)
    run = endless.run
    assert run.status == "stopped"
    assert [row["round"] for row in run.rows] == list(range(1, len(run.rows) + 1))
    newest = run.checkpoints.load().round
    # The last row may be written a moment before its checkpoint.
    assert finished - 1 <= newest
    assert len(run.rows) - 1 <= newest <= len(run.rows)


def test_a_run_whose_machine_died_is_resumed_as_if_it_had_not(
    runner: Runner, tmp_path: Path
) -> None:
    values = {
        **TINY,
        "strategy": "CutMixSL",
        "num-server-rounds": NUM_ROUNDS,
        "steps-per-round": 20,
    }
    flower_home, local_home = tmp_path / "there", tmp_path / "here"
    run = killed_and_resumed(runner, values, flower_home, nodes=2)
    check_same_run(run, run_here(values, 2, local_home))


def test_a_resumed_run_of_texts_is_too(runner: Runner, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        **language_app.TINY,
        "strategy": "USplitFL",
        "num_server_rounds": NUM_ROUNDS,
        "steps_per_round": 20,
        "server_threads": 1,
    }
    run_config = {name.replace("_", "-"): value for name, value in values.items()}
    run = killed_and_resumed(runner, run_config, tmp_path / "there", nodes=2, app=language_app.APP)
    with one_thread():
        whole = language_app.fit(tmp_path / "here", **values).strategy.recorder.run
    assert whole is not None
    check_same_run(run, whole)


def killed_and_resumed(
    runner: Runner, values: Mapping[str, Any], run_dir: Path, **options: Any
) -> Run:
    """Start a run of `NUM_ROUNDS` rounds, kill it after two, continue it to its end."""
    run_id = runner.start({**values, "run-dir": str(run_dir)}, **options)
    runner.reach(run_id, "the second round's end", lambda: len(rows(run_dir)) >= 2, START_SECONDS)
    runner.end_runs()
    broken = Run.open("latest", home=run_dir)
    assert broken.status == "stopped"
    assert 2 <= len(broken.rows) < NUM_ROUNDS

    resumed = runner.run({"resume": broken.id, "batch-size": 7}, run_dir, **options)
    assert resumed.status == "finished:completed", resumed.details
    assert "resuming after round" in resumed.log
    # Flower says what was given, beside the app's defaults.
    ignored = f"ignores what is given now: batch-size is {broken.config['batch-size']}, not 7. Only"
    assert ignored in resumed.log
    assert [run.id for run in Run.all(run_dir)] == [broken.id]
    return Run.open(broken.id, home=run_dir)


def check_same_run(run: Run, whole: Run) -> None:
    """Compare a resumed run with one that nothing happened to: it must be that, bit for bit."""
    assert [row["round"] for row in run.rows] == list(range(1, NUM_ROUNDS + 1))
    assert run.status == "finished"
    assert measured(run) == measured(whole)
    end, expected = run.checkpoints.load(), whole.checkpoints.load()
    assert end.round == expected.round == NUM_ROUNDS
    assert end.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(end.tensors[name], tensor), name
