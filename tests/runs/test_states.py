"""The state of a run is what its lock, its summary and its failure say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2)


def fit(run: Run, rounds: int, *observers: Observer) -> None:
    strategy = PSL(TOY.upper(), device="cpu", steps_per_round=1, run=run, observers=observers)
    strategy.fit(TOY.make_clients(), rounds)


class Raises(Observer):
    """Raises an error in a round."""

    def __init__(self, server_round: int, error: BaseException) -> None:
        self.server_round = server_round
        self.error = error

    def on_begin(self, event: RoundBegun) -> None:
        if event.server_round == self.server_round:
            raise self.error


def test_a_run_is_stopped_running_failed_running_again_and_finished(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    assert run.status == "stopped"
    statuses: list[str] = []

    class Looks(Observer):
        def on_round(self, event: RoundDone) -> None:
            statuses.append(Run.open("latest", home=tmp_path).status)

    with pytest.raises(LinkError):
        fit(run, 3, Looks(), Raises(2, LinkError("the power is gone")))
    assert statuses == ["running"]
    assert (run.status, run.failure) == ("failed", "the power is gone")
    with pytest.raises(KeyboardInterrupt):
        fit(run, 3, Looks(), Raises(3, KeyboardInterrupt()))
    assert (run.status, run.failure) == ("stopped", None)
    fit(run, 3, Looks())
    assert statuses == ["running"] * 3
    assert (run.status, run.failure) == ("finished", None)


def test_the_state_in_another_process_is_seen_and_who_looks_is_in_nobodys_way(
    tmp_path: Path,
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    script = (
        "import sys\n"
        "from flwr_splitmix.runs import Run\n"
        "with Run.open('latest', home=sys.argv[1]).held():\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        while run.status != "running":
            assert other.poll() is None
            time.sleep(0.05)
        assert other.stdout.readline() == "held\n"
        lock = (run.path / "lock").read_text()
        assert run.status == "running"
        assert (run.path / "lock").read_text() == lock, "who looks does not write"
        other.kill()
        other.wait()
        assert str(run.status) == "stopped"


def test_a_run_that_is_refused_is_not_one_that_failed(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    again = Run.open(run.id, home=tmp_path)
    with run.held(), pytest.raises(RunError, match="is in progress"):
        fit(again, 1)
    assert run.failure is None


def test_a_finished_run_can_be_given_more_rounds(tmp_path: Path) -> None:
    config: Mapping[str, object] = {"num-server-rounds": 2, "lr": 1.0}
    run = Run.create(config, name="x", home=tmp_path)
    fit(run, 2)
    assert run.status == "finished"
    fit(Run.open(run.id, home=tmp_path), 3)
    again = Run.open(run.id, home=tmp_path)
    assert [row["round"] for row in again.rows] == [1, 2, 3]
    assert again.status == "finished"
    assert again.config == {"num-server-rounds": 3, "lr": 1.0}
