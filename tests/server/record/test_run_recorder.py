"""A run's directory lets the run go on from wherever its process was killed."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import CheckpointStore
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from flwr_splitmix.testing.toy import Toy


def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first row may be written already, so that no other could follow it."""
    toy = Toy(tests=0)

    def fit(run: Run) -> list[Any]:
        PSL(toy.upper(), device="cpu", run=run).fit(toy.make_clients(), 2)
        return [row["loss"] for row in run.rows]

    killed = Run.create({}, name="killed", home=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "save", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(killed)
    assert len(killed.rows) == 1
    assert fit(Run(killed.path)) == fit(Run.create({}, name="whole", home=tmp_path))


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


class Telling(PSL):
    """Keeps the configurations that its tickets give to the clients."""

    def configure_train(self, *arguments: Any) -> Iterable[Message]:
        messages = super().configure_train(*arguments)
        self.run_configs = {Ticket.from_message(message).run_config for message in messages}
        return messages


def test_a_run_stopped_before_its_first_checkpoint_keeps_its_configuration(tmp_path: Path) -> None:
    """Clients would else take the app's own keys, among them no `max-epsilon`."""
    toy = Toy(tests=0)
    created = Run.create({"max-epsilon": 2.0, "num-server-rounds": 1}, name="x", home=tmp_path)
    resumed = Telling(toy.upper(), device="cpu", run=Run.open(created.id, home=tmp_path))
    resumed.fit(toy.make_clients(), 2)
    assert [json.loads(config) for config in resumed.run_configs] == [
        {"max-epsilon": 2.0, "num-server-rounds": 2}
    ]
    fresh = Telling(toy.upper(), device="cpu", run=Run.create({"k": 2}, name="y", home=tmp_path))
    fresh.fit(toy.make_clients(), 1)
    assert fresh.run_configs == {""}


@pytest.mark.parametrize(
    ("has_checkpoint", "remedy"), [(True, "resume the run"), (False, "start a new run")]
)
def test_a_disk_that_is_full_at_the_end_is_named(
    has_checkpoint: bool, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, run = Toy(tests=0), Run.create({}, name="full", home=tmp_path)
    monkeypatch.setattr(Run, "write_summary", _full)
    if not has_checkpoint:
        monkeypatch.setattr(CheckpointStore, "save", _full)
    with pytest.raises(RunError, match="the end of the run cannot be written to") as refused:
        PSL(toy.upper(), device="cpu", run=run).fit(toy.make_clients(), 1)
    assert f"{run.path}: No space left on device; free space there and {remedy}" in str(
        refused.value
    )
    assert "No space left on device" in (Run(run.path).failure or "")


def test_a_checkpoint_that_a_full_disk_refused_is_not_that_of_a_later_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lack the states of clients, which are of the attempt before."""
    toy, run = Toy(tests=0), Run.create({}, name="full", home=tmp_path)
    stop = StopIn(3, 0)
    strategy = PSL(toy.upper(), device="cpu", run=run, steps_per_round=1, observers=[stop])
    with monkeypatch.context() as patched:
        really = CheckpointStore.save

        def save(store: CheckpointStore, number: int, *arguments: Any) -> Any:
            return really(store, number, *arguments) if number < 2 else _full()

        patched.setattr(CheckpointStore, "save", save)
        with pytest.raises(InterruptionError):
            strategy.fit(toy.make_clients(), 4)
    stop.place = (2, 0)
    with pytest.raises(InterruptionError):
        strategy.fit(toy.make_clients(), 4)
    assert run.checkpoints.rounds() == [1]
    assert strategy.recorder.checkpoints.rounds == [1]
    PSL(toy.upper(), device="cpu", run=Run(run.path), steps_per_round=1).fit(toy.make_clients(), 4)
    assert [row["round"] for row in Run(run.path).rows] == [1, 2, 3, 4]


def test_a_checkpoint_that_is_saved_at_the_end_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, run = Toy(tests=0), Run.create({}, name="full", home=tmp_path)
    really = CheckpointStore.save
    refused: list[int] = []

    def save(store: CheckpointStore, number: int, *arguments: Any) -> Any:
        if number == 2 and not refused:
            refused.append(number)
            _full()
        return really(store, number, *arguments)

    monkeypatch.setattr(CheckpointStore, "save", save)
    strategy = PSL(toy.upper(), device="cpu", run=run, steps_per_round=1)
    strategy.fit(toy.make_clients(), 2)
    assert refused == [2]
    assert strategy.recorder.checkpoints.rounds == run.checkpoints.rounds() == [1, 2]


class Removes(Observer):
    """Removes a run's folder in the middle of a round, as a user may."""

    def __init__(self, run: Run, server_round: int) -> None:
        self.run, self.server_round = run, server_round
        self.rounds: list[int] = []

    def on_step(self, event: StepDone) -> None:
        self.rounds.append(event.server_round)
        if event.server_round == self.server_round and self.run.path.exists():
            shutil.rmtree(self.run.path)


def test_a_run_whose_folder_is_removed_ends_and_does_not_bring_it_back(tmp_path: Path) -> None:
    toy, run = Toy(tests=0), Run.create({}, name="gone", home=tmp_path)
    removes = Removes(run, 2)
    strategy = PSL(toy.upper(), device="cpu", run=run, steps_per_round=1, observers=[removes])
    with pytest.raises(RunError, match=r"or config\.json in it, so the run ends"):
        strategy.fit(toy.make_clients(), 4)
    assert removes.rounds == [1, 2]
    assert not run.path.exists()


def test_a_directory_that_takes_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"a run cannot be written to .*runs: .*another run-dir"):
        Run.create({}, name="mine", home=tmp_path)


def test_a_link_takes_the_runs_id_for_the_states_on_its_nodes(tmp_path: Path) -> None:
    toy, run = Toy(tests=0), Run.create({}, name="mine", home=tmp_path)
    grid: Any = None
    link = StreamLink(address="127.0.0.1:0")
    names = []
    for recorded in (run, None, None):  # each start without a run is another one, too
        strategy = PSL(toy.upper(), device="cpu", run=recorded, link=link)
        with pytest.raises(LinkError, match="inside a Flower run only"):
            strategy.start(grid, ArrayRecord(toy.lower().state_dict()), 1)
        names.append(link.run_of_strategy)
    assert names[0] == run.id
    assert len(set(names)) == 3


def _full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
