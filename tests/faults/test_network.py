"""A port that cannot be reached, a network that drops for five seconds, one that is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from flwr_splitmix.sandbox.superlink import free_port
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.e2e.flower_run import Deployed, measured, rows
from tests.faults.faulty_run import APP, START_SECONDS, run_here, steps_in, steps_of
from tests.links.stream.peers import Proxy, delayed

STEPS_PER_ROUND = 30
DOWN_SECONDS = 5.0
DELAY_SECONDS = 0.3
CLIENTS = 3


@pytest.fixture
def network() -> Iterator[tuple[str, Proxy]]:
    """Yield where a link is to listen, and a network in front of it that nodes dial."""
    address = f"127.0.0.1:{free_port()}"
    proxy = Proxy(address)
    yield address, proxy
    proxy.close()


def test_a_port_that_cannot_be_reached_ends_the_run_with_a_sentence(
    deployed: Deployed, home: Path
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    ended = deployed.run({"link-advertise": nobody, "attach-timeout": 120.0}, home, app=APP)
    assert ended.status == "finished:failed"
    reason = f"could not reach the ServerApp at {nobody} within 60 s"
    assert "round 1: 0 clients are left, min-nodes is 2: " in ended.details
    assert f"clients 0, 1 and 2: {reason}" in ended.details
    assert ended.run is not None
    assert ended.run.rows == []


def test_a_network_that_drops_and_is_slow_changes_nothing_but_the_time(
    deployed: Deployed,
    home: Path,
    tmp_path: Path,
    network: tuple[str, Proxy],
    app: ModuleType,
) -> None:
    address, proxy = network
    values = {"rounds": 2, "steps": STEPS_PER_ROUND, "pause": 0.1, "min-nodes": CLIENTS}
    settings = {"link-address": address, "link-advertise": proxy.address, "run-dir": str(home)}
    run_id = deployed.start({**values, **settings}, APP)
    deployed.reach(run_id, "step 5", lambda: len(steps_in(home, 0, 1)) >= 5, START_SECONDS)
    proxy.open = False
    proxy.cut()
    time.sleep(DOWN_SECONDS)
    proxy.open = True
    deployed.reach(run_id, "the first round's end", lambda: len(rows(home)) >= 1, START_SECONDS)
    proxy.line = delayed(DELAY_SECONDS)
    ended = deployed.finish(run_id, home)

    assert ended.status == "finished:completed", ended.log
    assert ended.run is not None
    assert [row["clients_alive"] for row in ended.run.rows] == [CLIENTS, CLIENTS]
    assert proxy.accepted >= 3 * CLIENTS  # both rounds, and again after the network was back
    # The step in flight was repeated on the wire and run once.
    for client in range(CLIENTS):
        assert (
            steps_in(home, client, 1)
            == steps_in(home, client, 2)
            == list(range(STEPS_PER_ROUND + 1))
        )
    whole = run_here(app, values, tmp_path)
    assert measured(ended.run) == measured(whole)
    check_same_results(read_results(whole), deployed.results(ended.run))
    # A step is there and back, and 0.1 s of the client's own: for all clients at the same time.
    # Were they called one after another, even the fastest step would take `CLIENTS` times as long.
    began = [step.began for step in steps_of(home, 0) if step.round == 2]
    one, fastest = 2 * DELAY_SECONDS + 0.1, min(later - sooner for sooner, later in pairwise(began))
    assert one <= fastest < 0.8 * CLIENTS * one
