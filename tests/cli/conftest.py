"""A home with two runs: a finished one of 14 evaluated rounds and an unfinished one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.cli.run.superlinks import PORTS
from flwr_splitmix.flwr_command import Flwr, FlwrError
from flwr_splitmix.runs import Run
from flwr_splitmix.sandbox.superlink import free_port
from tests.cli.run_command import MODULE

Splitmix = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a SuperLink where none is: one of another environment may be running here."""
    for variable in PORTS:
        monkeypatch.setenv(variable, str(free_port()))


def add_rounds(run: Run, rounds: int, *, every: int = 1) -> None:
    for number in range(1, rounds + 1):
        evaluated = number % every == 0
        run.append_round(
            {
                "round": number,
                "loss": 2.0 / number,
                "accuracy": 0.5 + number / 100 if evaluated else None,
                "accuracy_kind": "global test set" if evaluated else None,
                "eval_loss": 2.1 / number if evaluated else None,
                "seconds": 1.5,
                "steps": 20,
                "uplink_bytes": 1_000_000,
                "downlink_bytes": 500_000,
                "uplink_bytes_psl": 2_000_000,
                "clients_alive": 9,
                "clients_failed": 1,
                "slowest_node": "client-3",
                "steps_per_second": 13.3,
            }
        )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def finished(home: Path) -> Run:
    config = {"strategy": "cutmixsl", "model": "vit_tiny", "num-server-rounds": 28}
    run = Run.create(config, name="cutmixsl", home=home)
    add_rounds(run, 28, every=2)
    run.write_summary(
        {
            "strategy": "cutmixsl",
            "model": "vit_tiny",
            "clients": 10,
            "rounds": 28,
            "steps": 560,
            "top1": 0.78,
            "evaluation": "global test set",
            "loss": 0.0714,
            "uplink_bytes": 12_300_000,
            "downlink_bytes": 14_000_000,
            "uplink_bytes_psl": 24_600_000,
            "wall_s": 425.4,
            "versions": {"torch": "2.4.0", "flwr": "1.41.0"},
            "seed": 7,
        }
    )
    return run


@pytest.fixture
def unfinished(home: Path, finished: Run) -> Run:
    config = {
        "strategy": "psl",
        "model": "vit_tiny",
        "clients": 10,
        "num-server-rounds": 28,
        "seed": 8,
    }
    run = Run.create(config, name="psl", home=home)
    add_rounds(run, 3)
    return run


@pytest.fixture
def splitmix(home: Path) -> Splitmix:
    """Run a command line on the runs of `home`."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments], env={"SPLITMIX_HOME": str(home)})

    return call


@pytest.fixture
def no_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have `splitmix run` neither check an app nor start Flower."""

    def start(self: Flwr, *arguments: Any) -> int:
        raise FlwrError("Flower was started")

    monkeypatch.setattr(Flwr, "start", start)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setattr(MODULE, "check_environment", lambda connection: "")
    monkeypatch.setattr(MODULE, "_check_report", lambda *arguments: {"problems": [], "remarks": []})
