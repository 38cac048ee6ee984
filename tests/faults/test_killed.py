"""Processes that are killed or frozen: a ClientApp, a SuperNode, the ServerApp."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from types import ModuleType

from flwr_splitmix import Run
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.e2e.flower_run import Deployed, measured, rows
from tests.faults.faulty_run import (
    APP,
    START_SECONDS,
    go_on,
    run_here,
    server_process,
    steps_in,
    steps_of,
)
from tests.waiting import wait_for


def drawn(deployed: Deployed, run: Run, client: int) -> int:
    """Return how many batches a client has drawn, by the state that its node kept."""
    state = ClientStore(deployed.flower.node(client).state_dir / run.id).load(client)
    assert state is not None
    return int(state[2]["drawn"])


def alive(run: Run | None) -> list[int]:
    """Return the number of clients at the end of each round."""
    assert run is not None
    return [int(row["clients_alive"]) for row in run.rows]


def test_a_clientapp_that_is_killed_in_a_step_costs_its_node_one_round(
    deployed: Deployed, home: Path
) -> None:
    """Flower hands its SuperNode no message for a minute; the next round waits for it."""
    values = {"steps": 30, "pause": 0.3, "reattach-timeout": 4.0, "run-dir": str(home)}
    run_id = deployed.start(values, APP)
    deployed.reach(
        run_id, "client 1's fifth step", lambda: len(steps_in(home, 1, 1)) >= 5, START_SECONDS
    )
    os.kill(steps_of(home, 1)[-1].process, signal.SIGKILL)
    ended = deployed.finish(run_id, home)
    assert ended.status == "finished:completed", ended.log
    assert alive(ended.run) == [2, 3]
    assert "round 1 continued without client 1: was cut off and not back within 4 s" in ended.log
    assert ended.run is not None
    for client in (0, 2):
        for server_round in (1, 2):  # every step once, and the round's end
            assert steps_in(home, client, server_round) == list(range(31))
        assert drawn(deployed, ended.run, client) == 60
    # What the killed process had in memory is lost, and nothing else.
    assert steps_in(home, 1, 2) == list(range(31))
    assert drawn(deployed, ended.run, 1) == 30


def test_a_supernode_that_is_killed_comes_back_with_its_state(
    deployed: Deployed, home: Path
) -> None:
    """A round is held until it is back, as a busy machine may take long to start it."""
    values = {"rounds": 4, "steps": 20, "held": "2 3", "step-timeout": 600.0}
    run_id = deployed.start({**values, "run-dir": str(home)}, APP)
    deployed.reach(run_id, "the first round's end", lambda: len(rows(home)) >= 1, START_SECONDS)
    deployed.flower.node(2).kill()
    go_on(home, 2)
    deployed.reach(run_id, "the second round's end", lambda: len(rows(home)) >= 2, START_SECONDS)
    deployed.flower.node(2).start()
    deployed.flower.wait_until_online(3)
    go_on(home, 3)
    ended = deployed.finish(run_id, home)
    assert ended.status == "finished:completed", ended.log
    clients_alive = alive(ended.run)
    assert clients_alive[:2] == [3, 2]
    assert clients_alive[-1] == 3
    # It is one or the other, depending on whether its client had attached to the round.
    gone = "is not connected to the SuperLink any more|was cut off and not back within 20 s"
    assert re.search(rf"round 2 continued without client 2: ({gone})", ended.log)
    assert ended.run is not None
    assert [drawn(deployed, ended.run, client) for client in (0, 1)] == [80, 80]
    assert drawn(deployed, ended.run, 2) == 20 * clients_alive.count(3)


def test_a_clientapp_that_is_frozen_for_longer_than_the_deadline(
    deployed: Deployed, home: Path
) -> None:
    values = {"steps": 30, "pause": 0.3, "step-timeout": 8.0, "run-dir": str(home)}
    run_id = deployed.start(values, APP)
    deployed.reach(
        run_id, "client 1's fifth step", lambda: len(steps_in(home, 1, 1)) >= 5, START_SECONDS
    )
    frozen = steps_of(home, 1)[-1].process
    os.kill(frozen, signal.SIGSTOP)
    deployed.reach(run_id, "the first round's end", lambda: len(rows(home)) >= 1, START_SECONDS)
    os.kill(frozen, signal.SIGCONT)
    ended = deployed.finish(run_id, home)
    assert ended.status == "finished:completed", ended.log
    assert alive(ended.run) == [2, 3]
    assert "round 1 continued without client 1: did not answer step within 8 s" in ended.log
    assert ended.run is not None
    assert [drawn(deployed, ended.run, client) for client in (0, 2)] == [60, 60]
    # It keeps what it has drawn: the batches that it has sent are not sent for new ones.
    assert drawn(deployed, ended.run, 1) == len(set(steps_in(home, 1, 1))) + 30


def test_a_run_whose_serverapp_was_killed_is_resumed_as_if_it_had_not(
    deployed: Deployed, home: Path, tmp_path: Path, app: ModuleType
) -> None:
    values = {"rounds": 4, "steps": 20, "pause": 0.3, "min-nodes": 3}
    run_id = deployed.start({**values, "reattach-timeout": 4.0, "run-dir": str(home)}, APP)
    deployed.reach(
        run_id, "step 5 of round 3", lambda: len(steps_in(home, 0, 3)) >= 5, START_SECONDS
    )
    server_process(deployed.flower).kill()
    broken = Run.open("latest", home=home)
    wait_for("the end of what held the run", lambda: broken.status == "stopped", 60)
    assert len(broken.rows) == 2

    ended = deployed.run({**values, "resume": broken.id}, home, app=APP)
    assert ended.status == "finished:completed", ended.log
    assert [run.id for run in Run.all(home)] == [broken.id]
    whole = run_here(app, values, tmp_path)
    assert ended.run is not None
    assert measured(ended.run) == measured(whole)
    check_same_results(read_results(whole), deployed.results(ended.run))
