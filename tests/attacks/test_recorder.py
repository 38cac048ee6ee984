"""The recorder keeps the steps of the U shape, and no more than it should."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.description import Description
from flwr_splitmix.events import Exchange, Messages, RoundBegun, RunStarted, StepDone
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.toy_texts import TextToy

MASK = torch.ones(2, 4, dtype=torch.uint8)


def tensors(value: float, m: int = 3) -> list[Tensor]:
    return [torch.full((2, 4, 5), float(value + i)) for i in range(m)]


def done(number: int, clients: Iterable[int] = (0,), *, learns: bool = True) -> StepDone:
    """Return a step in which each client sent its own numbers, and got them plus 5 back."""
    values = {client: 10 * number + 100 * client for client in clients}
    return StepDone(
        1,
        number,
        {client: Messages(tensors(value), MASK) for client, value in values.items()},
        {client: tensors(value + 5) for client, value in values.items()} if learns else {},
        outputs={client: tensors(value + 1) for client, value in values.items()},
        returned={client: tensors(value + 2) for client, value in values.items()},
    )


def firsts(messages: Sequence[Tensor | None]) -> list[float]:
    return [float(each[0, 0, 0]) for each in messages if each is not None]


def steps_of(recorder: Recorder) -> list[UShapeStep]:
    return [step for step in recorder.trace.steps() if isinstance(step, UShapeStep)]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_step_of_the_u_shape_is_in_the_trace(place: str, tmp_path: Path) -> None:
    recorder = Recorder(directory=None if place == "memory" else tmp_path / "trace")
    recorder.on_step(done(3, (1, 0)))
    (step,) = steps_of(recorder)
    assert (step.server_round, step.number) == (1, 3)
    assert list(step.messages) == list(step.masks) == [0, 1]
    for client, value in ((0, 30), (1, 130)):
        assert firsts(step.messages[client]) == [value, value + 1, value + 2]
        assert firsts(step.gradients[client]) == [value + 5, value + 6, value + 7]
        assert firsts(step.outputs[client]) == [value + 1, value + 2, value + 3]
        assert firsts(step.returned[client]) == [value + 2, value + 3, value + 4]


def test_a_step_in_which_nobody_learned_has_no_gradients() -> None:
    recorder = Recorder()
    recorder.on_step(done(0, learns=False))
    recorder.on_step(done(1))
    first, second = steps_of(recorder)
    assert not first.gradients[0]
    assert len(second.gradients[0]) == 3


def test_only_as_many_bytes_are_kept_as_it_may_have() -> None:
    one = Recorder()
    one.on_step(done(0))
    (step,) = steps_of(one)
    groups = (step.messages, step.outputs, step.returned, step.gradients)
    size = MASK.nbytes + sum(t.nbytes for group in groups for t in group[0] if t is not None)
    recorder = Recorder(max_bytes=2 * size)
    for number in range(5):
        recorder.on_step(done(number))
    assert [step.number for step in steps_of(recorder)] == [3, 4]


def test_only_as_many_clients_are_followed_as_it_may() -> None:
    recorder = Recorder(max_clients=2)
    recorder.on_step(done(0, (3, 1, 2)))
    assert list(steps_of(recorder)[0].messages) == [1, 2]


def test_who_does_not_say_where_it_is_in_its_data_is_counted_from_where_it_was() -> None:
    recorder = Recorder()
    descriptions = {0: Description(num_examples=8, drawn=3), 1: Description(num_examples=8)}
    recorder.on_begin(RoundBegun(1, {}, False, descriptions))
    recorder.on_exchange(Exchange(1, 1, "encode", "down", {"last": False}, 0))
    assert recorder.state() == {"drawn": {"0": 3, "1": 1}}


def test_what_is_kept_in_memory_is_a_copy_without_a_graph() -> None:
    recorder = Recorder()
    messages = [tensor.requires_grad_() for tensor in tensors(1)]
    recorder.on_step(StepDone(1, 0, {0: Messages(messages, MASK)}, {}))
    with torch.no_grad():
        messages[0].zero_()
    (step,) = steps_of(recorder)
    assert not any(each.requires_grad for each in step.messages[0])
    assert firsts(step.messages[0]) == [1, 2, 3]


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_clients is 0; it must be at least 1"):
        Recorder(max_clients=0)


def test_the_warning_of_a_recorded_run_is_plain_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Codes of a terminal's colours do not belong in logs."""
    started = RunStarted("PSL", 2, run_id="a-run")
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        Recorder(directory=tmp_path / "trace").on_start(started)
    assert "this run RECORDS what its server sees" in caplog.text
    assert "`splitmix attack forget a-run` removes them" in caplog.text
    assert "\x1b" not in caplog.text


class Odd(UShapeClient):
    """Sends numbers for messages, if it is client 1."""

    def run(self, method: str, arguments: Any) -> Any:
        reply = super().run(method, arguments)
        liar = method == "encode" and self.order.client == 1 and "messages" in reply
        return {**reply, "messages": [1, 2]} if liar else reply


def test_a_client_without_messages_does_not_end_a_recorded_run() -> None:
    toy = TextToy(kind=Odd)
    recorder = Recorder()
    strategy = USplitSL(toy.server(), device="cpu", observers=[recorder])
    strategy.fit(toy.clients_for(strategy), 1)
    assert strategy.rows[-1]["clients_failed"] == 1
    assert {client for step in steps_of(recorder) for client in step.messages} == {0, 2}


@pytest.mark.parametrize("averaged", [True, False])
def test_first_weights_are_kept_and_averages_of_every_round(averaged: bool) -> None:
    recorder, first = Recorder(), {"weight": torch.tensor(1.0)}
    for first_round in (1, 3):  # a run, and another one that goes on
        recorder.on_start(RunStarted("PSL", 4, first_round))
        for number in range(first_round, 5):
            average = {"weight": torch.tensor(float(number))}
            segment = partial(average.copy) if averaged else None
            begun = RoundBegun(number, {}, averaged, {}, segment=segment, first=lambda: first)
            recorder.on_begin(begun)
        assert (recorder.trace.segment(4) is not None) is averaged
        assert recorder.first == first
