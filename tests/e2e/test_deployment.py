"""`apps/vision` on a real SuperLink and two real SuperNodes, with TLS, keys and tokens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.sandbox.deployment import LocalDeployment, Node
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.e2e.flower_run import TINY, Deployed, measured, run_here
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

NODES = 2
VALUES = {**TINY, "strategy": "CutMixSFL", "min-nodes": NODES, "attach-timeout": 240.0}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    """Start a deployment; afterwards nothing of it may be left."""
    with LocalDeployment(NODES, environment=ONE_THREAD) as deployment:
        yield Deployed(deployment)
        ports = [deployment.port, *(node.port for node in deployment.nodes)]
        assert deployment.processes()
    assert deployment.processes() == []
    assert not deployment.home.exists()
    for port in ports:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))


def test_a_run_on_supernodes_equals_one_in_this_process(deployed: Deployed, tmp_path: Path) -> None:
    values = {**VALUES, "evaluation": "federated", "evaluate-every": 2}
    ended = deployed.run(values, tmp_path / "deployed")
    assert ended.status == "finished:completed", ended.details + ended.log
    assert ended.run is not None
    assert "link: StreamLink" in ended.log
    assert "with TLS" in ended.log
    assert [row["clients_alive"] for row in ended.run.rows] == [NODES, NODES]
    assert ended.run.summary is not None
    assert ended.run.summary["top1"] == ended.run.rows[-1]["accuracy"] > 0
    local_run = run_here(values, NODES, tmp_path)
    assert measured(ended.run) == measured(local_run)
    check_same_results(read_results(local_run), deployed.results(ended.run))
    # Every byte of a step that arrived is one that a node has written down.
    audits = [read_journal(n.state_dir / f"audit-{n.index}.jsonl") for n in deployed.flower.nodes]
    steps = [entry for audit in audits for entry in audit if entry["exchange"] == "step"]
    assert sum(entry["bytes"] for entry in steps) == ended.run.summary["uplink_bytes"]
    # Each node has kept its own client's state, and no other's.
    for node in deployed.flower.nodes:
        kept = {path.name for path in (node.state_dir / ended.run.id).iterdir()}
        assert kept == {str(node.index), "owner"}


def test_int8_sends_what_its_scales_and_labels_leave_of_a_quarter(
    deployed: Deployed, tmp_path: Path
) -> None:
    values = {**VALUES, "num-server-rounds": 1}
    ended = deployed.run({**values, "wire-dtype": "int8"}, tmp_path / "deployed")
    assert ended.status == "finished:completed", ended.details + ended.log
    assert ended.run is not None
    (row,), (exact,) = ended.run.rows, run_here(values, NODES, tmp_path).rows
    # 2 steps, each client's 25 labels of 8 bytes; a patch of 192 float32 becomes 192 bytes and
    # a scale of 4.
    labels = 2 * NODES * 25 * 8
    assert (row["uplink_bytes"] - labels) * 4 * 192 == (exact["uplink_bytes"] - labels) * 196
    assert row["downlink_bytes"] * 4 * 192 == exact["downlink_bytes"] * 196
    assert row["loss"] == pytest.approx(exact["loss"], abs=0.05)
    assert row["loss"] != exact["loss"]


def test_a_node_whose_key_is_not_registered_is_turned_away(deployed: Deployed) -> None:
    stranger = Node(deployed.flower, NODES, {})
    stranger.make_key()
    stranger.start()
    process = stranger.process
    assert process is not None
    wait_for("the end of the stranger", lambda: process.poll() is not None, 240)
    assert process.returncode != 0
    assert "305" in stranger.log()
    assert deployed.flower.online() == NODES
