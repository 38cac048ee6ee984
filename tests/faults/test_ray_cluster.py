"""A simulation joins a Ray cluster that someone has started, and uses all its nodes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from flwr_splitmix import RayLink
from flwr_splitmix.sandbox.flower import LocalFlower
from flwr_splitmix.sandbox.superlink import free_port
from tests.e2e.flower_run import TINY, Runner
from tests.e2e.processes import Watch, end_processes
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


class Cluster:
    """Two Ray nodes on this machine, each of which ends with its `ray start --block`."""

    def __init__(self, watch: Watch) -> None:
        # A session's sockets lie in here, and a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="smx-", dir="/tmp"))
        self.watch = watch
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def start(self) -> None:
        output = self._node(
            "head",
            "--head",
            f"--port={free_port()}",
            f"--temp-dir={self.folder}",
            "--include-dashboard=false",
        )
        # Ray listens on this machine's own address, and not on every machine on the loopback.
        printed = re.search(r"ray start --address='([^']+)'", output)
        assert printed is not None, output
        self.address = printed[1]
        self._node("second", f"--address={self.address}")

    def _node(self, name: str, *options: str) -> str:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "ray"), "start", "--block",
                    "--num-cpus=1", "--num-gpus=0", "--disable-usage-stats",
                    f"--dashboard-agent-listen-port={free_port()}", *options,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.nodes.append(node)
        self.watch.add(node.pid)

        def up() -> bool:
            assert node.poll() is None, log.read_text()
            return "--block" in log.read_text()

        wait_for(f"the start of node {name}", up, 240)
        return log.read_text()

    def stop(self) -> None:
        """End both nodes, by their process ids."""
        started = [self.watch.add(node.pid) for node in self.nodes if node.poll() is None]
        below = [child for root in started for child in root.children(recursive=True)]
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)  # nothing happens to one that has ended
        for node in self.nodes:
            try:
                node.wait(timeout=60)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        end_processes(below)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(watch: Watch) -> Iterator[Cluster]:
    cluster = Cluster(watch)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster_runner(cluster: Cluster, watch: Watch) -> Iterator[Runner]:
    environment = {
        "RAY_ADDRESS": cluster.address,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    with LocalFlower(environment) as flower:
        runner = Runner(flower, watch)
        yield runner
        runner.end_runs()


def test_hosts_spread_over_the_nodes_of_a_cluster(cluster_runner: Runner, tmp_path: Path) -> None:
    values = {**TINY, "strategy": "CutMixSFL", "num-hosts": 0}
    ended = cluster_runner.run(values, tmp_path, nodes=4, cpus=1)
    assert ended.status == "finished:completed", ended.details + ended.log
    assert "2 client hosts on 2 Ray nodes" in ended.log
    assert ended.run is not None
    assert [row["clients_alive"] for row in ended.run.rows] == [4, 4]
    # And with the installation of runtime dependencies turned off.
    assert "uv sync" not in ended.log


def test_hosts_of_a_lost_node_are_started_on_another(cluster: Cluster) -> None:
    """The last test of this file: the cluster has one node less afterwards."""
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        link = RayLink(num_hosts=3)
        link.open(None)
        before = homes(link)
        assert sorted(Counter(before).values()) == [1, 2]
        cluster.nodes[1].send_signal(signal.SIGTERM)
        wait_for("the loss of the node", lambda: len(alive()) == 1, 120)
        link.hosts.replace_lost()
        assert homes(link) == alive() * 3
        link.close()
    finally:
        ray.shutdown()


def alive() -> list[str]:
    """Return the Ray nodes that are there."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["NodeID"] for node in nodes if node["Alive"]]


def homes(link: RayLink) -> list[str]:
    """Return the Ray node that each host really runs on."""
    nodes: list[str] = ray.get([host.ready.remote() for host in link.handles], timeout=240)
    return nodes
