"""A mixer that is killed during a round, and one that comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import MetricRecord

from flwr_splitmix import Run
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.observers import Observer
from flwr_splitmix.sandbox.superlink import free_port
from flwr_splitmix.testing.agreement import check_same_results
from tests.links.kept import results
from tests.links.mixer.third_party import TOY, grid_of, make, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]


class In(Observer):
    """Does something after a step of a round."""

    def __init__(self, server_round: int, number: int, do: Callable[[], object]) -> None:
        self.place = (server_round, number)
        self.do = do

    def on_step(self, event: StepDone) -> None:
        if (event.server_round, event.number) == self.place:
            self.do()


class Replaced:
    """A mixer that can be restarted at the same address."""

    def __init__(self, start_mixer: Start) -> None:
        self.listen = f"127.0.0.1:{free_port()}"
        self._start = start_mixer
        self.mixer = start_mixer(listen=self.listen)

    def again(self) -> None:
        self.mixer.stop()
        self.mixer = self._start(listen=self.listen)


def test_a_mixer_that_is_gone_costs_the_round_and_not_the_run(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixer, run = Replaced(start_mixer), Run.create({}, name="lost", home=tmp_path)
    link = link_to(mixer.mixer, run=run.id, reattach_timeout=2.0)
    grid = grid_of(tmp_path / "nodes")
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        start(make("CutMixSL", link, run, observers=[In(2, 1, mixer.again)]), grid, 4)
    grid.wait()
    assert [row["round"] for row in run.rows] == [1, 3, 4]
    assert [row["steps"] for row in run.rows] == [3, 3, 3]
    assert [row["clients_alive"] for row in run.rows] == [4, 4, 4]
    assert run.rows[1]["uplink_bytes"] == run.rows[0]["uplink_bytes"]
    assert (
        f"round 2 is lost, the run continues: the mixer at {mixer.listen} (link-via) is gone"
        in (caplog.text)
    )


def test_a_mixer_that_is_gone_in_the_last_round_costs_no_evaluation(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Extended, the run continues after that round, as its nodes do."""
    mixer, run = Replaced(start_mixer), Run.create({}, name="last", home=tmp_path)
    evaluated: list[int] = []

    def score(server_round: int, arrays: object) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"accuracy": 0.5})

    for rounds in (2, 3):
        opened = Run.open(run.id, home=tmp_path)
        link = link_to(mixer.mixer, run=run.id, reattach_timeout=2.0)
        grid = grid_of(tmp_path / "nodes")
        strategy = make(
            "CutMixSL", link, opened, evaluate_every=5, observers=[In(2, 1, mixer.again)]
        )
        start(strategy, grid, rounds, evaluate_fn=score)
        grid.wait()
        assert (opened.status, evaluated[-1]) == ("finished", rounds)
        assert (
            (opened.summary or {})["evaluated_round"] == opened.checkpoints.load().round == rounds
        )
    assert [(row["round"], row["clients_alive"]) for row in opened.rows] == [(1, 4), (3, 4)]
    assert evaluated == [2, 3]


def test_a_run_that_loses_every_round_to_its_mixer_fails(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    mixer, run = Replaced(start_mixer), Run.create({}, name="all", home=tmp_path)
    link = link_to(mixer.mixer, run=run.id, reattach_timeout=2.0)
    observers = [In(1, 1, mixer.again), In(2, 0, mixer.again)]
    grid = grid_of(tmp_path / "nodes")
    with pytest.raises(LinkError, match=r"every round .* was lost.* 2, the last: the mixer"):
        start(make("CutMixSL", link, run, observers=observers), grid, 2)
    grid.wait()
    assert (run.status, run.rows) == ("failed", [])
    grid = grid_of(tmp_path / "nodes")
    link = link_to(mixer.mixer, run=run.id)
    start(make("CutMixSL", link, Run.open(run.id, home=tmp_path)), grid, 2)
    grid.wait()
    assert [row["clients_alive"] for row in Run.open(run.id, home=tmp_path).rows] == [4, 4]


def test_a_mixer_that_stays_away_ends_the_run_with_a_sentence(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    mixer = start_mixer()
    run = Run.create({}, name="away", home=tmp_path)
    link = link_to(mixer, run=run.id, attach_timeout=3.0, reattach_timeout=1.0)
    strategy = make("CutMixSL", link, run, observers=[In(2, 0, mixer.stop)])
    with pytest.raises(LinkError, match=r"could not be reached within 3 s.*does splitmix mixer"):
        start(strategy, grid_of(tmp_path / "nodes"), 4)
    assert [row["round"] for row in run.rows] == [1]


def test_a_run_that_was_stopped_goes_on_over_a_mixer_with_the_same_seed(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Law 5."""
    nodes = tmp_path / "nodes"
    whole = Run.create({}, name="whole", home=tmp_path)
    start(make("CutMixSL", link_to(start_mixer(), run=whole.id), whole), grid_of(nodes), 3)
    run = Run.create({}, name="stopped", home=tmp_path)

    def stop() -> None:
        raise ZeroDivisionError

    link = link_to(start_mixer(), run=run.id)
    with pytest.raises(ZeroDivisionError):
        start(make("CutMixSL", link, run, observers=[In(3, 1, stop)]), grid_of(nodes), 3)
    again = Run.open(run.id, home=tmp_path)
    start(make("CutMixSL", link_to(start_mixer(), run=run.id), again), grid_of(nodes), 3)
    check_same_results(results(whole, nodes), results(again, nodes))
    assert TOY.clients == 4
