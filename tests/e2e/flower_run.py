"""Real runs of Flower apps: start one, look at it while it runs, wait for its end."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from flwr.app import ArrayRecord

from flwr_splitmix import Run
from flwr_splitmix.runs import Row
from flwr_splitmix.testing.flower import LocalFlower
from tests.apps import vision_app
from tests.e2e.processes import Watch, descendants, end_processes, wait_for

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
}
"""Two steps a round of a model with one block: what a run costs is Ray's start."""

MINUTES = 60.0
SIMULATION = "flwr-simulation"
RAY_DID_NOT_START = "The current node timed out during startup"


@dataclass(frozen=True)
class Ended:
    """A run that has ended, as its user sees it."""

    status: str
    details: str
    log: str
    run: Run | None


class Runner:
    """Starts runs on one SuperLink and waits for them without slowing them down."""

    def __init__(self, flower: LocalFlower, watch: Watch) -> None:
        self.flower = flower
        own = descendants(psutil.Process(), str(flower.home))
        self.superlink = watch.add(min(own, key=lambda process: process.create_time()).pid)

    def start(
        self,
        values: Mapping[str, Any],
        nodes: int = 2,
        app: Path = vision_app.APP,
        **federation: Any,
    ) -> int:
        """Submit a run; returns Flower's id of it."""
        text = " ".join(f"{key}={toml(value)}" for key, value in values.items())
        return self.flower.submit(app, text, nodes, **federation)

    def finish(self, run_id: int, run_dir: Path, timeout: float = 5 * MINUTES) -> Ended:
        """Wait for a run's end, and until all its processes are gone."""
        deadline = time.monotonic() + timeout
        while True:
            # Asking Flower costs a second of a CPU that the run needs: look for its process.
            wait_for(f"the end of run {run_id}", lambda: not self.simulations(), timeout)
            status, details = self.flower.status(run_id)
            if status.startswith("finished"):
                break
            assert time.monotonic() < deadline, f"run {run_id} is {status}: {details}"
            time.sleep(0.5)
        wait_for("the end of the run's processes", lambda: not self.simulations(), 30)
        runs = Run.list(run_dir)
        log = self.flower.log(run_id)
        return Ended(status, details, log, runs[-1] if runs else None)

    def simulations(self) -> list[psutil.Process]:
        """Return the processes of runs in progress."""
        return descendants(self.superlink, SIMULATION)

    def run(self, values: Mapping[str, Any], run_dir: Path, **options: Any) -> Ended:
        """Do a whole run with its directory in `run_dir`."""
        values = {**values, "run-dir": str(run_dir)}
        ended = self.finish(self.start(values, **options), run_dir)
        if (
            RAY_DID_NOT_START in ended.log
        ):  # seen once in some hundred starts, before any code of ours
            ended = self.finish(self.start(values, **options), run_dir)
        return ended

    def end_runs(self) -> None:
        """Kill the runs in progress, with all that they have started."""
        for process in self.simulations():
            end_processes([process, *process.children(recursive=True)])


def toml(value: Any) -> str:
    """Write a value as `--run-config` wants it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def rows(run_dir: Path) -> list[Row]:
    """Return the metrics so far of the newest run in a directory; none if it has not begun."""
    runs = Run.list(run_dir)
    return runs[-1].rows if runs else []


def run_here(values: Mapping[str, Any], nodes: int, run_dir: Path) -> Run:
    """Do the same run in this process, over a LocalLink, with one thread for the server."""
    config_values = {**vision_app.run_config(), **values}
    config = vision_app.module("vision_config").VisionConfig.read(config_values)
    segments = config.segments()
    make_client = vision_app.module("client_app").client_fn
    clients = [make_client(vision_app.context(i, nodes, config_values)) for i in range(nodes)]
    run = Run.create(config_values, name="here", home=run_dir)
    # The app's process ends with its run; here the segments are kept for the next one.
    upper = copy.deepcopy(segments.upper)
    strategy = vision_app.module("server_app").make_strategy(config, upper, run)
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
