"""A resumed run takes the aggregator's options as they are given, and its results as they were."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower

from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Toy
from tests.server.aggregation.aggregators import ANY_NODES

TOY = Toy(clients=2)


class Decaying(flower.FedAvg):
    """Scales its averages by a factor that becomes smaller in each round."""

    def __init__(self, lr: float | None = 1.0) -> None:
        super().__init__(**ANY_NODES)
        self.lr = lr

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average and scale."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        self.lr = (self.lr or 1.0) * 0.9
        scaled = {}
        for name, array in arrays.items():
            scaled[name] = Array(np.asarray(array.numpy() * self.lr, dtype=array.dtype))
        return ArrayRecord(scaled), metrics


class Stops(Observer):
    """Interrupts the run once, after a round was aggregated and before its checkpoint."""

    def __init__(self, server_round: int) -> None:
        self.server_round = server_round

    def on_round(self, event: RoundDone) -> None:
        if event.server_round == self.server_round:
            self.server_round = 0
            raise KeyboardInterrupt


def sfl(run: Run, aggregator: flower.Strategy, *observers: Observer) -> SFL:
    reopened = Run.open(run.id, home=run.path.parent.parent)
    return SFL(
        TOY.upper(), device="cpu", steps_per_round=1, run=reopened, aggregator=aggregator,
        observers=observers,
    )  # fmt: skip


def averaged(result: flower.Result) -> dict[str, Any]:
    assert result.arrays is not None
    return {name: array.numpy().tolist() for name, array in result.arrays.items()}


def new_run(home: Path) -> Run:
    return Run.create({}, name="x", home=home)


def private(noise: float, clip: float = 1.0) -> Any:
    inner = flower.FedAdam(eta=0.1, **ANY_NODES)
    return flower.DifferentialPrivacyServerSideFixedClipping(inner, noise, clip, 2)


class Clocked(Decaying):
    """Has a float that no argument gives, another one in each process."""

    def __init__(self, lr: float = 1.0) -> None:
        super().__init__(lr)
        self.began = next(CLOCK)


CLOCK = itertools.count(0.5)


def test_a_float_that_no_argument_gives_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path)
    first = Clocked()
    sfl(run, first).fit(TOY.make_clients(), 1)
    again = Clocked()
    assert again.began != first.began
    sfl(run, again).fit(TOY.make_clients(), 2)
    assert again.began == first.began
    assert f"Clocked.began = {first.began}, as its checkpoint has it" in caplog.text


def test_an_option_that_is_given_anew_holds_in_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint's 0.1 does not replace it."""
    run = new_run(tmp_path)
    sfl(run, flower.FedAdam(eta=0.1, **ANY_NODES)).fit(TOY.make_clients(), 2)
    again = flower.FedAdam(eta=0.001, **ANY_NODES)
    sfl(run, again).fit(TOY.make_clients(), 3)
    assert again.eta == 0.001
    warning = "FedAdam.eta = 0.001, as given now; the run began with 0.1"
    assert [warning in text for text in caplog.messages].count(True) == 1
    assert caplog.text.count("as given now") == 1
    assert again.m_t is not None  # the moments go on
    caplog.clear()
    third = flower.FedAdam(eta=0.001, **ANY_NODES)
    sfl(run, third).fit(TOY.make_clients(), 4)
    assert third.eta == 0.001
    assert "as given now" not in caplog.text


def test_noise_that_is_given_anew_is_not_weakened(caplog: pytest.LogCaptureFixture) -> None:
    """A noise multiplier of 4 does not become the 0.5 of the checkpoint."""
    state = LowerAggregator(private(0.5)).state()
    for multiplier in (4.0, 4):
        caplog.clear()
        aggregator = private(multiplier)
        LowerAggregator(aggregator).restore(state)
        assert aggregator.noise_multiplier == multiplier
        (warning,) = caplog.messages
        assert (
            "FixedClipping.noise_multiplier = 4.0, as given now; the run began with 0.5" in warning
        )


def test_an_option_of_a_wrapped_strategy_holds_too(caplog: pytest.LogCaptureFixture) -> None:
    state = LowerAggregator(private(0.5)).state()
    aggregator = private(0.5)
    aggregator.strategy.eta = 0.001
    LowerAggregator(aggregator).restore(state)
    assert aggregator.strategy.eta == 0.001
    assert "FedAdam.eta = 0.001, as given now; the run began with 0.1" in caplog.text


@pytest.mark.parametrize("lr", [1.0, 1, None])
def test_what_the_aggregator_changes_goes_on(
    lr: float | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = sfl(new_run(tmp_path), Decaying(lr)).fit(TOY.make_clients(), 4)
    run = new_run(tmp_path)
    for server_round in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            sfl(run, Decaying(lr), Stops(server_round)).fit(TOY.make_clients(), 4)
    last = Decaying(lr)
    parts = sfl(run, last).fit(TOY.make_clients(), 4)
    assert last.lr == pytest.approx(0.9**4)
    assert averaged(parts) == averaged(whole)
    assert "as given now" not in caplog.text


def test_so_it_does_in_the_same_object_after_an_interruption(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The round that is repeated must not take its own change for an option."""
    whole = sfl(new_run(tmp_path), Decaying()).fit(TOY.make_clients(), 3)
    decaying = Decaying()
    strategy = sfl(new_run(tmp_path), decaying, Stops(2))
    with pytest.raises(KeyboardInterrupt):
        strategy.fit(TOY.make_clients(), 3)
    parts = strategy.fit(TOY.make_clients(), 3)
    assert decaying.lr == pytest.approx(0.9**3)
    assert averaged(parts) == averaged(whole)
    assert "as given now" not in caplog.text


def test_a_value_given_anew_changes_on_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path)
    sfl(run, Decaying()).fit(TOY.make_clients(), 2)
    strategy = sfl(run, decaying := Decaying(0.5), Stops(4))
    with pytest.raises(KeyboardInterrupt):
        strategy.fit(TOY.make_clients(), 4)
    assert "= 0.5, as given now; the run began with 1.0 and had reached 0.81" in caplog.text
    caplog.clear()
    strategy.fit(TOY.make_clients(), 4)
    assert decaying.lr == pytest.approx(0.5 * 0.9**2)
    last = Decaying(0.5)
    sfl(run, last).fit(TOY.make_clients(), 5)
    assert last.lr == pytest.approx(0.5 * 0.9**3)
    assert "as given now" not in caplog.text


def test_a_value_given_anew_is_put_back_before_its_first_round_is_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint does not have it yet, and the aggregator has changed it."""
    run = new_run(tmp_path)
    sfl(run, Decaying()).fit(TOY.make_clients(), 2)
    strategy = sfl(run, decaying := Decaying(0.5), Stops(3))
    with pytest.raises(KeyboardInterrupt):
        strategy.fit(TOY.make_clients(), 4)
    assert decaying.lr == pytest.approx(0.5 * 0.9)
    strategy.fit(TOY.make_clients(), 4)
    assert decaying.lr == pytest.approx(0.5 * 0.9**2)
    assert caplog.text.count("= 0.5, as given now; the run began with 1.0") == 2


def test_a_value_given_as_it_has_become_goes_on_however_often_it_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second command that gives it is no change that takes back what has come since."""
    run = new_run(tmp_path)
    sfl(run, first := Decaying()).fit(TOY.make_clients(), 2)
    lr = first.lr
    for rounds in (3, 4, 5):
        sfl(run, last := Decaying(lr)).fit(TOY.make_clients(), rounds)
        assert last.lr == pytest.approx(0.9**rounds)
    assert "as given now" not in caplog.text
    sfl(run, last := Decaying(1.0)).fit(TOY.make_clients(), 6)  # which is now another one
    assert last.lr == pytest.approx(0.9)
    assert f"= 1.0, as given now; the run began with {lr}" in caplog.text


def test_a_first_round_that_is_repeated_begins_with_what_was_given(tmp_path: Path) -> None:
    decaying = Decaying(0.5)
    strategy = sfl(new_run(tmp_path), decaying, Stops(2))
    with pytest.raises(KeyboardInterrupt):
        strategy.fit(TOY.make_clients(), 3)
    decaying.lr = 0.25
    strategy.fit(TOY.make_clients(), 3)
    assert decaying.lr == pytest.approx(0.25 * 0.9**2)


class OfClass(Decaying):
    """Has a number as an attribute of the class."""

    factor = 0.5


def test_an_attribute_of_the_class_is_given_too(caplog: pytest.LogCaptureFixture) -> None:
    class Edited(OfClass):
        factor = 0.25

    first = OfClass()
    aggregator = LowerAggregator(first)
    first.factor = 0.4  # as an aggregator may, in a round
    for kind, factor in ((OfClass, 0.4), (Edited, 0.25)):
        resumed = kind()
        LowerAggregator(resumed).restore(aggregator.state())
        assert resumed.factor == factor
    assert "Edited.factor = 0.25, as given now; the run began with 0.5 and had " in caplog.text


def test_a_checkpoint_without_the_value_that_a_number_was_given_is_refused() -> None:
    """Restored, it would take the place of what is given now, with a warning."""
    state = LowerAggregator(private(0.5)).state()
    for name in [name for name in state if name.endswith("noise_multiplier.float.began")]:
        del state[name]
    again = private(4.0)
    with pytest.raises(
        AggregatorError, match=r"lacks the value that .*FixedClipping\.noise_multiplier was given; "
    ):
        LowerAggregator(again).restore(state)
    assert again.noise_multiplier == 4.0


def test_checkpoints_keep_the_beginnings_of_floats_alone() -> None:
    began = {
        name.removeprefix("aggregator."): tensor.tolist()
        for name, tensor in LowerAggregator(Decaying(2.0)).state().items()
        if name.endswith(".began")
    }
    assert began["lr.float.began"] == [2.0]
    assert set(began) == {f"{n}.float.began" for n in ("lr", "fraction_train", "fraction_evaluate")}
    assert torch.tensor(began["fraction_train.float.began"]).shape == (1,)
