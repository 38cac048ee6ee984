"""Real runs of Flower apps: start one, look at it while it runs, wait for its end."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from flwr.app import ArrayRecord

from flwr_splitmix import Run
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.flwr_command import FlwrError, config_text
from flwr_splitmix.runs import Row
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.sandbox.deployment import LocalDeployment
from flwr_splitmix.sandbox.flower import LocalFlower
from flwr_splitmix.sandbox.superlink import SuperLink
from flwr_splitmix.testing.agreement import Results, read_results
from tests.apps import vision_app
from tests.e2e.processes import Watch, command, descendants, end_processes
from tests.waiting import wait_for

TINY: dict[str, Any] = {
    "samples-per-client": 50,
    "batch-size": 25,
    "depth": 1,
    "patch-size": 8,
    "num-server-rounds": 2,
    "device": "cpu",
    "client-device": "cpu",
    "server-threads": 1,
    "evaluation": "none",
    "num-hosts": 1,
}
"""Two steps a round of a model with one block: what a run costs is its processes' start."""

MINUTE = 60.0
SIMULATION = "flwr-simulation"
SERVER_APP = "flwr-serverapp"
RAY_FAILED = (
    "The current node timed out during startup",
    "its host died (ActorUnavailableError)",
)
"""What a log says where Ray on a busy machine was too slow for itself, each seen once in some
hundred runs: it did not start, or did not reach for a moment hosts that were alive."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended, as its user sees it."""

    status: str
    details: str
    log: str
    run: Run | None


T = TypeVar("T")


def patiently(ask: Callable[[int], T], run_id: int) -> T:
    """Ask `flwr` about a run, and again if a busy machine has let its connection time out."""
    for _ in range(5):
        try:
            return ask(run_id)
        except FlwrError as error:
            if "is unavailable" not in str(error):
                raise
        time.sleep(2.0)
    return ask(run_id)


class Runs(ABC):
    """Waits for the runs of one SuperLink without slowing them down."""

    flower: SuperLink

    @abstractmethod
    def in_progress(self) -> list[psutil.Process]:
        """Return the processes of runs in progress."""

    def reach(self, run_id: int, event: str, true: Callable[[], object], timeout: float) -> None:
        """Wait for something that a run is to do; a run that ends without it fails at once."""

        def is_reached() -> object:
            if (reached := true()) or self.in_progress():
                return reached
            status, details = self.flower.status(run_id)
            ended = status.startswith("finished") and not true()
            assert not ended, f"run ended before {event}: {details} {self.flower.log(run_id)}"
            return true()

        wait_for(event, is_reached, timeout)

    def finish(self, run_id: int, run_dir: Path, timeout: float = 15 * MINUTE) -> Ended:
        """Wait for a run's end, and until all its processes are gone."""
        deadline = time.monotonic() + timeout
        while True:
            # Asking Flower costs a second of a CPU that the run needs: look for its process.
            wait_for(f"the end of run {run_id}", lambda: not self.in_progress(), timeout)
            status, details = patiently(self.flower.status, run_id)
            if status.startswith("finished"):
                break
            assert time.monotonic() < deadline, f"run {run_id} is {status}: {details}"
            time.sleep(0.5)
        wait_for("the end of the run's processes", lambda: not self.in_progress(), 120)
        runs = Run.all(run_dir)
        log = patiently(self.flower.log, run_id)
        return Ended(status, details, log, runs[-1] if runs else None)


class Runner(Runs):
    """Starts runs with virtual clients on one SuperLink."""

    def __init__(self, flower: LocalFlower, watch: Watch) -> None:
        self.flower: LocalFlower = flower
        processes = descendants(psutil.Process(), str(flower.home))
        self.superlink = watch.add(min(processes, key=lambda process: process.create_time()).pid)

    def start(
        self,
        values: Mapping[str, Any],
        nodes: int = 2,
        app: Path = vision_app.APP,
        cpus: int = 2,
    ) -> int:
        """Submit a run; returns Flower's id of it.

        Two CPUs for a virtual client are one process of ClientApps on two cores.
        """
        return self.flower.submit(app, config_text(values), nodes, cpus)

    def in_progress(self) -> list[psutil.Process]:
        """Return the processes of simulations in progress."""
        return self.simulations()

    def simulations(self) -> list[psutil.Process]:
        """Return the processes of runs in progress."""
        return descendants(self.superlink, SIMULATION)

    def run(self, values: Mapping[str, Any], run_dir: Path, **options: Any) -> Ended:
        """Do a whole run with its directory in `run_dir`."""
        values = {**values, "run-dir": str(run_dir)}
        ended = self.finish(self.start(values, **options), run_dir)
        if any(phrase in ended.log for phrase in RAY_FAILED):
            ended = self.finish(self.start(values, **options), run_dir)
        return ended

    def end_runs(self) -> None:
        """Kill the runs in progress, with all that they have started."""
        for process in self.simulations():
            end_processes([process, *process.children(recursive=True)])


class Deployed(Runs):
    """Starts runs on a deployment; their links have TLS with its certificates."""

    def __init__(self, flower: LocalDeployment) -> None:
        self.flower: LocalDeployment = flower

    def start(self, values: Mapping[str, Any], app: Path = vision_app.APP) -> int:
        """Submit a run; returns Flower's id of it."""
        return self.flower.submit(app, config_text({**self.flower.link_config, **values}))

    def in_progress(self) -> list[psutil.Process]:
        """Return the ServerApps' processes."""
        return [p for p in self.flower.processes() if SERVER_APP in command(p)]

    def run(self, values: Mapping[str, Any], run_dir: Path, **options: Any) -> Ended:
        """Do a whole run with its directory in `run_dir`."""
        return self.finish(self.start({**values, "run-dir": str(run_dir)}, **options), run_dir)

    def finish(self, run_id: int, run_dir: Path, timeout: float = 15 * MINUTE) -> Ended:
        """Wait for a run's end; every round starts a process on each node, which may take long."""
        return super().finish(run_id, run_dir, timeout)

    def results(self, run: Run) -> Results:
        """Read what the server and the nodes have kept of a run."""
        server_results = read_results(run)
        tensors = dict(server_results.tensors)
        for node in self.flower.nodes:
            stored = ClientStore(node.state_dir / run.id).load(node.index)
            assert stored is not None, f"node {node.index} has kept no state of the run"
            tensors |= {f"client {node.index}: {name}": t for name, t in stored[1].items()}
            tensors[f"client {node.index}: batches drawn"] = torch.tensor(stored[2]["drawn"])
        return Results(server_results.rows, tensors)


def rows(run_dir: Path) -> list[Row]:
    """Return the metrics so far of the newest run in a directory; none if it has not begun."""
    runs = Run.all(run_dir)
    return runs[-1].rows if runs else []


def run_here(values: Mapping[str, Any], nodes: int, run_dir: Path) -> Run:
    """Do the same run in this process, over a LocalLink, with one thread for the server."""
    config_values = {**vision_app.run_config(), **values}
    config = VisionConfig.read(config_values)
    segments = segments_of(config)
    clients = [client_fn(vision_app.context(i, nodes, config_values)) for i in range(nodes)]
    run = Run.create(config_values, name="here", home=run_dir)
    # The app's process ends with its run; here the segments are kept for the next one.
    upper = copy.deepcopy(segments.upper)
    strategy = make_strategy(config, upper, run)
    with one_thread():
        strategy.fit(
            clients,
            config.num_server_rounds,
            initial_arrays=ArrayRecord(segments.lower.state_dict()),
        )
    return run


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: sums on several add up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MEASURED = ("round", "loss", "accuracy", "eval_loss", "steps", "uplink_bytes", "downlink_bytes")
"""Columns that do not depend on how fast the machine is."""


def measured(run: Run) -> list[dict[str, Any]]:
    """Return what a run measured, without its times."""
    return [{name: row[name] for name in MEASURED} for row in run.rows]
