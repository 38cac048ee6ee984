"""The events of a run from start to end, and requests of observers to stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix import Run, events, observers
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import Upload
from flwr_splitmix.observers import (
    Exchange,
    Messages,
    Observer,
    RoundBegun,
    RoundDone,
    RunEnded,
    RunStarted,
    StepDone,
)
from flwr_splitmix.strategies import SFL, CutMixSL, USplitFL
from flwr_splitmix.testing.recording import copied
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy

TOY = Toy(clients=2, tests=6)


class Seen(Observer):
    """Keeps all that it is told, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_start(self, event: RunStarted) -> None:
        self.events.append(event)

    def on_begin(self, event: RoundBegun) -> None:
        self.events.append(event)

    def on_exchange(self, event: Exchange) -> None:
        self.events.append(copied(event))

    def on_step(self, event: StepDone) -> None:
        self.events.append(event)

    def on_round(self, event: RoundDone) -> None:
        self.events.append(event)

    def on_end(self, event: RunEnded) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def fit(toy: Any = TOY, kind: Any = SFL, rounds: int = 2, *extra: Observer, **options: Any) -> Seen:
    observer = Seen()
    strategy = kind(
        toy.server(), optimizer=sgd(0.1), device="cpu", observers=[observer, *extra], **options
    )
    strategy.fit(toy.clients_for(strategy, sgd(0.1)), rounds)
    return observer


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    observer = fit()
    assert observer.events[0] == RunStarted("SFL", num_rounds=2, first_round=1)
    end = observer.events[-1]
    assert isinstance(end, RunEnded)
    assert (end.rounds, end.error) == (2, "")
    assert (end.summary["strategy"], end.summary["rounds"], end.summary["clients"]) == ("SFL", 2, 2)
    assert end.summary["uplink_bytes"] == sum(e.uplink_bytes for e in observer.of(RoundDone))
    assert len(observer.of(RunStarted)) == len(observer.of(RunEnded)) == 1


def test_the_start_names_the_run_and_the_round_that_it_goes_on_with(tmp_path: Path) -> None:
    run = Run.create({"model": "toy", "lr": 0.1}, name="r", home=tmp_path)
    fit(run=run)
    resumed = Run.open(run.id, home=tmp_path)
    (start,) = fit(TOY, SFL, 3, run=resumed).of(RunStarted)
    assert start == RunStarted(
        "SFL", 3, 3, config={"model": "toy", "lr": 0.1}, run_id=run.id, directory=resumed.path
    )
    assert resumed.summary is not None
    assert resumed.summary["model"] == "toy"


class FailsAtTheEnd(Observer):
    """Has nothing to write to, when the run is over."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def on_end(self, event: RunEnded) -> None:
        raise OSError(self.reason)


def test_an_observer_that_fails_at_the_end_keeps_no_other_from_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    last = Seen()
    with pytest.raises(OSError, match="disk full"):
        fit(TOY, SFL, 1, FailsAtTheEnd("disk full"), FailsAtTheEnd("no\nnetwork"), last)
    assert len(last.of(RunEnded)) == 1
    assert "FailsAtTheEnd.on_end() failed, too: OSError: no\\nnetwork" in caplog.text


def test_an_observer_that_fails_at_the_end_does_not_hide_why_the_run_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fails(FailsAtTheEnd):
        def on_step(self, event: StepDone) -> None:
            raise ValueError("the run's own error")

        def facts(self) -> Any:
            raise OSError("no facts")

    last = Seen()
    with pytest.raises(ValueError, match="the run's own error"):
        fit(TOY, SFL, 1, Fails("disk full"), last)
    (end,) = last.of(RunEnded)
    assert end.error == "ValueError: the run's own error"
    assert "Fails.facts() failed, too: OSError: no facts" in caplog.text
    assert "Fails.on_end() failed, too: OSError: disk full" in caplog.text


@pytest.mark.parametrize(("toy", "kind"), [(TOY, SFL), (TextToy(tests=6), USplitFL)])
def test_the_end_of_a_round_has_loss_bytes_and_the_row_of_metrics(toy: Any, kind: Any) -> None:
    observer = Seen()
    strategy = kind(
        toy.server(),
        optimizer=sgd(0.1),
        device="cpu",
        observers=[observer],
        evaluation="federated",
        evaluate_every=2,
    )
    strategy.fit(toy.clients_for(strategy, sgd(0.1)), 3)
    rounds = observer.of(RoundDone)
    assert [event.row for event in rounds] == strategy.rows
    for event in rounds:
        exchanges = [e for e in observer.of(Exchange) if e.server_round == event.server_round]
        trained = [e for e in exchanges if e.phase == "train"]
        assert event.loss == event.row["loss"] > 0
        assert event.uplink_bytes == sum(e.nbytes for e in trained if e.direction == "up") > 0
        assert event.downlink_bytes == sum(e.nbytes for e in trained if e.direction == "down") > 0
        assert event.row["uplink_bytes"] == event.uplink_bytes
        assert event.row["downlink_bytes"] == event.downlink_bytes
        assert event.row["accuracy"] == (event.evaluation and event.evaluation.accuracy)


def next_call(observer: Seen, step: StepDone, client: int) -> Exchange:
    """Return the call that brings a client what comes back of a step."""
    call: Exchange
    (call,) = (
        e
        for e in observer.of(Exchange)
        if (e.server_round, e.client, e.direction) == (step.server_round, client, "down")
        and e.payload["number"] == step.number + 1
        and "gradient" in e.payload
    )
    return call


def test_a_step_of_the_l_shape_has_uploads_gradients_and_what_was_mixed() -> None:
    observer = fit(Toy(clients=2), CutMixSL, 1, steps_per_round=3)
    steps = observer.of(StepDone)
    assert [step.number for step in steps] == [0, 1, 2]
    for step in steps:
        assert step.plan is not None
        assert step.mixed is not None
        assert step.loss is step.result.loss
        assert step.returned == {}
        for client in (0, 1):
            assert isinstance(step.uploads[client], Upload)
            (upload,), (gradient,) = step.uploads[client].smashed, step.gradients[client]
            assert gradient.shape == upload.shape
            (returned,) = next_call(observer, step, client).payload["gradient"]
            assert torch.equal(returned, gradient)


def test_a_step_of_the_u_shape_is_an_encode_and_a_decode() -> None:
    toy = TextToy()
    observer = fit(toy, USplitFL, 1, steps_per_round=3)
    steps = observer.of(StepDone)
    assert [step.number for step in steps] == [0, 1, 2]
    for step in steps:
        assert step.loss is step.plan is step.mixed is step.result is None
        ups = [
            e
            for e in observer.of(Exchange)
            if e.direction == "up" and e.server_round == 1 and e.phase == "train"
        ]
        for client in range(toy.clients):
            payloads = [e.payload for e in ups if e.client == client and e.payload]
            encoded = [p["messages"] for p in payloads if "messages" in p][step.number]
            answered = [p["gradients"] for p in payloads if "gradients" in p][step.number]
            assert isinstance(step.uploads[client], Messages)
            pairs = [
                (step.uploads[client].hidden, encoded),
                (step.returned[client], answered),
                (step.gradients[client], next_call(observer, step, client).payload["gradient"]),
            ]
            for observed, crossed in pairs:
                assert len(observed) == len(crossed)
                assert all(torch.equal(a, b) for a, b in zip(observed, crossed, strict=True))


class Fails(Observer):
    def on_step(self, event: StepDone) -> None:
        if (event.server_round, event.number) == (2, 1):
            raise LinkError("the power is gone")


def test_the_end_is_told_also_if_the_run_fails() -> None:
    observer = Seen()
    strategy = SFL(TOY.server(), device="cpu", observers=[observer, Fails()])
    with pytest.raises(LinkError, match="the power is gone"):
        strategy.fit(TOY.make_clients(), 3)
    end = observer.events[-1]
    assert (end.rounds, end.error, end.summary["rounds"]) == (1, "the power is gone", 1)
    assert len(observer.of(RunEnded)) == 1


def test_the_end_is_told_also_if_an_observer_does_not_like_the_start() -> None:
    class Picky(Observer):
        def on_start(self, event: RunStarted) -> None:
            raise ValueError("no tracker there")

    observer = Seen()
    strategy = SFL(TOY.server(), device="cpu", observers=[observer, Picky()])
    with pytest.raises(ValueError, match="no tracker there"):
        strategy.fit(TOY.make_clients(), 1)
    assert [type(event) for event in observer.events] == [RunStarted, RunEnded]
    assert (observer.events[-1].rounds, observer.events[-1].error) == (
        0,
        "ValueError: no tracker there",
    )


class StopsAfter(Observer):
    """Asks to stop in a round, at one place of it."""

    def __init__(self, server_round: int, place: str) -> None:
        self.round = server_round
        self.place = place

    def on_step(self, event: StepDone) -> None:
        if self.place == "step" and event.server_round == self.round:
            self.stop = "the loss is low enough"

    def on_round(self, event: RoundDone) -> None:
        if self.place == "round" and event.server_round == self.round:
            self.stop = "the loss is low enough"


@pytest.mark.parametrize("place", ["step", "round"])
def test_an_observer_can_end_the_run_after_a_round(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({}, name="r", home=tmp_path)
    options: dict[str, Any] = {
        "run": run, "checkpoint_every": 3, "evaluation": "federated", "evaluate_every": 4,
    }  # fmt: skip
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        observer = fit(TOY, SFL, 5, StopsAfter(2, place), **options)
    assert "the run ends after round 2: the loss is low enough" in caplog.text
    rounds = observer.of(RoundDone)
    assert [event.server_round for event in rounds] == [1, 2]
    # Asked for in time, the last round is evaluated; it is always kept.
    assert [event.evaluation is not None for event in rounds] == [False, place == "step"]
    assert run.checkpoints.rounds() == [2]
    assert (observer.events[-1].rounds, observer.events[-1].error) == (2, "")
    assert run.status == "finished"
    assert (run.summary or {})["stopped"] == "the loss is low enough"


def test_a_reason_to_stop_does_not_outlast_its_run() -> None:
    stopping, observer = StopsAfter(1, "round"), Seen()
    strategy = SFL(TOY.server(), device="cpu", observers=[stopping, observer])
    strategy.fit(TOY.make_clients(), 3)
    assert strategy.stop_reason == "the loss is low enough"
    stopping.round = 9
    strategy.fit(TOY.make_clients(), 3)
    assert strategy.stop_reason == ""
    assert [each.summary["stopped"] for each in observer.of(RunEnded)] == [
        "the loss is low enough", None,
    ]  # fmt: skip
    assert [row["round"] for row in strategy.rows] == [1, 2, 3]


def test_a_stop_without_a_reason_says_who_asked() -> None:
    class Impatient(Observer):
        def on_round(self, event: RoundDone) -> None:
            self.stop = True  # type: ignore[assignment]

    strategy = SFL(TOY.server(), device="cpu", observers=[Impatient()])
    strategy.fit(TOY.make_clients(), 3)
    assert strategy.stop_reason == "Impatient asked to stop"


def test_events_are_found_beside_the_observers_and_by_themselves() -> None:
    for name in events.__all__:
        assert name in observers.__all__
        assert getattr(events, name) is getattr(observers, name)
