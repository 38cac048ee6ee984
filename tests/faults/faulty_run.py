"""Runs of `fault_app`: what their clients have done so far, and the same run in this process."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
from flwr.app import ArrayRecord

from flwr_splitmix import Run
from flwr_splitmix.sandbox.deployment import LocalDeployment
from tests.e2e.flower_run import SERVER_APP, one_thread
from tests.e2e.processes import command

APP = Path(__file__).parent / "fault_app"
START_SECONDS = 300.0
"""Seconds in which a run has begun its steps, on a machine that does much else."""


class Step(NamedTuple):
    """One step of a client, as it noted it; `began` is of a clock that all processes share."""

    round: int
    number: int
    process: int
    began: float


def steps_of(home: Path, client: int) -> list[Step]:
    """Return the steps that a client has begun so far."""
    diary = home / f"client-{client}.txt"
    lines = diary.read_text().splitlines() if diary.exists() else []
    steps = [line.split() for line in lines if line.count(" ") == 3]
    return [Step(int(r), int(n), int(pid), float(began)) for r, n, pid, began in steps]


def steps_in(home: Path, client: int, server_round: int) -> list[int]:
    """Return the numbers of the steps that a client has begun in a round."""
    return [step.number for step in steps_of(home, client) if step.round == server_round]


def go_on(home: Path, server_round: int) -> None:
    """Let the clients of a round that is held proceed."""
    (home / f"go-on-{server_round}").touch()


def leftovers(deployment: LocalDeployment) -> list[str]:
    """Return the command lines of ServerApps and ClientApps that still run."""
    lines = [command(process) for process in deployment.processes()]
    return [line for line in lines if SERVER_APP in line or "flwr-clientapp" in line]


def server_process(deployment: LocalDeployment) -> psutil.Process:
    """Return the ServerApp's process."""
    (process,) = [p for p in deployment.processes() if SERVER_APP in command(p)]
    assert isinstance(process, psutil.Process)
    return process


def config_of(app: Path, **values: Any) -> dict[str, Any]:
    """Return an app's run configuration with some keys changed (`_` for `-`)."""
    described = tomllib.loads((app / "pyproject.toml").read_text())
    changed = {name.replace("_", "-"): value for name, value in values.items()}
    return {**described["tool"]["flwr"]["app"]["config"], **changed}


def run_here(app: ModuleType, values: Mapping[str, Any], home: Path) -> Run:
    """Do a run in this process, over a LocalLink."""
    values = config_of(APP, **values)
    run = Run.create(values, name="here", home=home)
    with one_thread():
        app.make_strategy(values, run, None).fit(
            app.make_clients({**values, "pause": 0.0, "run-dir": ""}),
            values["rounds"],
            initial_arrays=ArrayRecord(app.TOY.lower().state_dict()),
        )
    return run
