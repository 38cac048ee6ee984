"""Rounds that are lost with the mixer: of the end of a run, and of runs that lose every round."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord

from flwr_splitmix.events import RunEnded, StepDone
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import CheckpointStore
from flwr_splitmix.strategies import PSL, SFL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2, tests=6)


class Losing(SFL):
    """Loses some rounds after their last step, as with a mixer that is gone by then."""

    lost: Collection[int] = ()

    def train_round(self, clients: Clients, server_round: int) -> int:
        steps = super().train_round(clients, server_round)
        if server_round in self.lost:
            raise RoundLostError(f"the mixer hung up in round {server_round}")
        return steps


class Ended(Observer):
    def on_end(self, event: RunEnded) -> None:
        self.event = event


class Enough(Observer):
    """Asks the run to stop in a step of round 2, and notes in which rounds it saw steps."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_step(self, event: StepDone) -> None:
        self.rounds.append(event.server_round)
        if event.server_round == 2:
            self.stop = "enough"


class Scores:
    """An `evaluate_fn` whose accuracy is a tenth of its number of calls."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def __call__(self, server_round: int, arrays: ArrayRecord) -> Any:
        self.rounds.append(server_round)
        return {"accuracy": len(self.rounds) / 10, "loss": 1.5, "f1": 0.25}


def losing(lost: Collection[int], run: Run | None = None, **options: Any) -> Losing:
    strategy = Losing(TOY.upper(), device="cpu", steps_per_round=1, run=run, **options)
    strategy.lost = lost
    return strategy


def new_run(home: Path) -> Run:
    return Run.create({}, name="lost", home=home)


def reopened(run: Run) -> Run:
    return Run.open(run.id, home=run.path.parent.parent)


def test_a_last_round_that_is_lost_is_evaluated_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the run's summary would have no accuracy."""
    run, scores = new_run(tmp_path), Scores()
    strategy = losing([3], run, evaluate_every=3)
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        result = strategy.fit(TOY.make_clients(), 3, evaluate_fn=scores)
    assert scores.rounds == [3]
    assert dict(result.evaluate_metrics_serverapp[3])["accuracy"] == 0.1
    assert (run.status, [row["round"] for row in run.rows]) == ("finished", [1, 2])
    summary = run.summary or {}
    names = ("top1", "evaluation", "evaluated_round", "eval_loss", "eval_f1", "rounds")
    assert [summary[name] for name in names] == [0.1, "central", 3, 1.5, 0.25, 2]
    assert "after round 3, which was lost: top-1 0.1000 (central)" in caplog.text


def test_its_clients_evaluate_it_too() -> None:
    strategy = losing([2], evaluation="federated", evaluate_every=2)
    result = strategy.fit(TOY.make_clients(), 2)
    assert 2 in result.evaluate_metrics_clientapp
    assert [row["accuracy"] for row in strategy.rows] == [None]


def test_its_checkpoint_outlasts_a_power_loss_before_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointStore, "keep_between", lambda self: None)  # not reached then
    run = new_run(tmp_path)
    losing([3], run, checkpoint_every=5).fit(TOY.make_clients(), 3)
    names = [file.name for file in (run.path / "checkpoints").iterdir()]
    assert names == ["round-000003.safetensors"]


def test_its_state_is_the_newest_checkpoint(tmp_path: Path) -> None:
    """Not that of the round before, without the steps of the lost one."""
    run, scores = new_run(tmp_path), Scores()
    strategy = losing([3], run, evaluate_every=3, checkpoint_every=5)
    strategy.fit(TOY.make_clients(), 3, evaluate_fn=scores)
    checkpoint = run.checkpoints.load()
    assert checkpoint.round == 3
    for name, tensor in strategy.upper.module.state_dict().items():
        assert torch.equal(checkpoint.tensors[f"upper.{name}"], tensor)
    summary = run.summary or {}
    again = losing([], reopened(run), evaluate_every=3)
    again.fit(TOY.make_clients(), 3, evaluate_fn=scores)  # nothing is left to do
    assert scores.rounds == [3]
    assert {**(run.summary or {}), "wall_s": 0} == {**summary, "wall_s": 0}
    again = losing([], reopened(run), evaluate_every=3)
    again.fit(TOY.make_clients(), 4, evaluate_fn=scores)
    assert [row["round"] for row in reopened(run).rows] == [1, 2, 4]
    assert (reopened(run).summary or {})["evaluated_round"] == 4


def test_a_lost_round_before_the_last_leaves_the_end_as_it_is(tmp_path: Path) -> None:
    run, scores = new_run(tmp_path), Scores()
    losing([2], run).fit(TOY.make_clients(), 3, evaluate_fn=scores)
    assert scores.rounds == [1, 3]
    assert (run.summary or {})["evaluated_round"] == 3


def test_a_run_without_a_round_fails_and_begins_anew(tmp_path: Path) -> None:
    """It is not "finished", and needs no checkpoint to be resumed."""
    run, scores, ended = new_run(tmp_path), Scores(), Ended()
    message = "every round of the run was lost.*round 3, the last: the mixer hung up in round 3"
    with pytest.raises(LinkError, match=message):
        losing([1, 2, 3], run, observers=[ended]).fit(TOY.make_clients(), 3, evaluate_fn=scores)
    assert (run.status, run.rows, scores.rounds) == ("failed", [], [])
    assert "the mixer hung up in round 3" in (run.failure or "")
    assert ended.event.rounds == 0
    losing([1], reopened(run)).fit(TOY.make_clients(), 3)
    assert (run.status, [row["round"] for row in reopened(run).rows]) == ("finished", [2, 3])


def test_a_resumed_run_that_loses_its_rounds_keeps_those_before(tmp_path: Path) -> None:
    run, scores = new_run(tmp_path), Scores()
    losing([], run).fit(TOY.make_clients(), 1, evaluate_fn=scores)
    losing([2, 3], reopened(run)).fit(TOY.make_clients(), 3, evaluate_fn=scores)
    assert (run.status, [row["round"] for row in reopened(run).rows]) == ("finished", [1])
    assert scores.rounds == [1, 3]
    assert run.checkpoints.load().round == 3


def test_a_run_that_an_observer_ends_after_a_lost_round_is_evaluated() -> None:
    class Stops(PSL):
        def train_round(self, clients: Clients, server_round: int) -> int:
            steps = super().train_round(clients, server_round)
            if server_round == 2:
                self.stop_reason = "enough"
                raise RoundLostError("gone")
            return steps

    scores = Scores()
    strategy = Stops(TOY.upper(), device="cpu", steps_per_round=1, evaluate_every=5)
    strategy.fit(TOY.make_clients(), 4, evaluate_fn=scores)
    assert scores.rounds == [2]


def test_an_observer_that_asks_to_stop_ends_a_run_whose_rounds_are_lost(tmp_path: Path) -> None:
    """It is heard before a round comes through, however many are lost until then."""
    run, scores, observer = new_run(tmp_path), Scores(), Enough()
    strategy = losing([2, 3, 4], run, evaluate_every=5, observers=[observer])
    strategy.fit(TOY.make_clients(), 6, evaluate_fn=scores)
    assert observer.rounds == [1, 2]
    assert scores.rounds == [2]
    assert (run.summary or {})["stopped"] == "enough"
    assert run.checkpoints.load().round == 2
