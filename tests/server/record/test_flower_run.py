"""What a strategy writes and says of the Flower run that it is started in, in any app."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from flwr_splitmix.events import RoundBegun
from flwr_splitmix.files.reading import read_json
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.progress import FILE
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.flower_run import find_flower_run, note_flower_run
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2)


class Closed(LocalLink):
    """A link that no run gets through."""

    def open(self, grid: Grid | None) -> None:
        raise LinkError("closed")


def start(run: Run, **config: Any) -> None:
    """Start a strategy in run 7 of Flower, up to its first round."""
    grid: Any = SimpleNamespace(run=SimpleNamespace(run_id=7, override_config=config))
    strategy = PSL(TOY.upper(), device="cpu", run=run, link=Closed(TOY.make_clients()))
    with pytest.raises(LinkError, match="closed"):
        strategy.start(grid, ArrayRecord(TOY.lower().state_dict()), 3)


def begun(home: Path, **config: Any) -> Run:
    run = Run.create(config, name="mine", home=home)
    PSL(TOY.upper(), device="cpu", run=run, steps_per_round=1).fit(TOY.make_clients(), 1)
    return run


def test_the_run_of_any_app_is_found_by_its_number_in_flower(tmp_path: Path) -> None:
    """`splitmix run` needs it for the summary."""
    run = Run.create({}, name="mine", home=tmp_path)
    assert find_flower_run(7, tmp_path) is None
    start(run)
    flower_run = find_flower_run(7, tmp_path)
    assert flower_run is not None
    assert flower_run.id == run.id


def test_a_resumed_run_is_found_among_many_newer_ones(tmp_path: Path) -> None:
    """Looked for among the newest, a run that has completed would seem to have not."""
    old = Run.create({}, name="old", home=tmp_path)
    for number in range(51):
        note_flower_run(Run.create({}, name="new", home=tmp_path), number)
    note_flower_run(old, 99)
    flower_run = find_flower_run(99, tmp_path)
    assert flower_run is not None
    assert flower_run.id == old.id


class Reading(Observer):
    """Reads the run's progress, as `splitmix run` does."""

    def __init__(self, run: Run) -> None:
        self.file = run.path / FILE
        self.rounds: list[int] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.rounds.append(read_json(self.file)["rounds"])


def test_the_progress_of_any_run_with_a_directory_can_be_followed(tmp_path: Path) -> None:
    """Also within a round, and of own apps."""
    run = Run.create({}, name="mine", home=tmp_path)
    reading = Reading(run)
    strategy = PSL(TOY.upper(), device="cpu", run=run, steps_per_round=1, observers=[reading])
    strategy.fit(TOY.make_clients(), 2)
    assert reading.rounds == [2, 2]
    assert not reading.file.exists()


def test_a_run_that_another_process_executes_keeps_its_number(tmp_path: Path) -> None:
    run = Run.create({}, name="mine", home=tmp_path)
    with run.held(), pytest.raises(RunError):
        start(Run(run.path))
    assert find_flower_run(7, tmp_path) is None


def test_keys_given_to_a_resumed_run_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients train with the first lr, so that the ServerApp must not take a new one silently."""
    run = begun(tmp_path, **{"lr": 0.01, "k": 2, "resume": "", "num-server-rounds": 5})
    config = {
        "lr": 0.5,
        "k": 2,
        "num-server-rounds": 3,
        "resume": run.id,
        "run-dir": str(tmp_path),
        "mine": 1,
    }
    caplog.clear()
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        start(Run.open(run.id, home=tmp_path), **config)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "built from the configuration that it began with, not from what is given" in warning
    assert "now: lr is 0.01, not 0.5. In the ServerApp" in warning


def test_nothing_is_said_where_nothing_differs_or_an_app_has_said_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path, lr=0.01)
    reconciled = Run.open("latest", home=tmp_path)
    reconciled.config_file.reconcile(reconciled.config)
    caplog.clear()
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        start(reconciled, lr=0.5)
        start(Run.open("latest", home=tmp_path), lr=0.01)
        start(Run.create({"lr": 0.01}, name="new", home=tmp_path), lr=0.5)
    assert not caplog.text
