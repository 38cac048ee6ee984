"""The recorder keeps uploads of the U shape, client by client, and no more than it should."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks import Recorder
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.events import Exchange, RoundBegun
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.toy_texts import TextToy

Direction = Literal["up", "down"]


def exchange(
    client: int, method: str, direction: Direction, server_round: int = 1, **payload: Any
) -> Exchange:
    return Exchange(server_round, client, method, direction, payload, 0)


def tensors(value: float, m: int = 3) -> list[Tensor]:
    return [torch.full((2, 4, 5), float(value + i)) for i in range(m)]


def test_messages_are_joined_with_their_gradients() -> None:
    recorder = Recorder()
    for client in (1, 0):
        recorder.on_exchange(
            exchange(client, "encode", "up", messages=tensors(10 * client), mask=1)
        )
    for client in (0, 1):
        recorder.on_exchange(exchange(client, "decode", "down", outputs=tensors(70)))
        recorder.on_exchange(exchange(client, "decode", "up", gradients=tensors(10 * client + 5)))
    assert list(recorder.recordings) == [0, 1]
    for client, (recording,) in recorder.recordings.items():
        assert recording.client == client
        assert recording.messages.shape == (3, 2, 4, 5)
        assert recording.messages[:, 0, 0, 0].tolist() == [10 * client + i for i in range(3)]
        assert recording.gradients is not None
        assert recording.gradients[:, 0, 0, 0].tolist() == [10 * client + 5 + i for i in range(3)]


def test_a_pass_without_backward_has_no_gradients() -> None:
    recorder = Recorder()
    recorder.on_exchange(exchange(0, "encode", "up", messages=tensors(0)))
    recorder.on_exchange(exchange(0, "encode", "up", server_round=2, messages=tensors(1)))
    recorder.on_exchange(exchange(0, "decode", "up", server_round=2, gradients=tensors(2)))
    first, second = recorder.recordings[0]
    assert first.gradients is None
    assert second.gradients is not None
    assert (first.server_round, second.server_round) == (1, 2)


def test_only_the_newest_are_kept() -> None:
    recorder = Recorder(limit=2)
    for step in range(5):
        recorder.on_exchange(exchange(0, "encode", "up", messages=tensors(step)))
        recorder.on_exchange(exchange(1, "encode", "up", messages=tensors(100 + step)))
    kept = {c: [float(r.messages[0, 0, 0, 0]) for r in rs] for c, rs in recorder.recordings.items()}
    assert kept == {0: [3.0, 4.0], 1: [103.0, 104.0]}


@pytest.mark.parametrize("drawn", [-1, 2**31, 10**4300 - 1, 1.0, "7"], ids=range(5))
def test_a_place_in_the_data_that_is_none_is_not_noted(drawn: Any) -> None:
    """A number of thousands of digits was written to every checkpoint, or could not be."""
    recorder = Recorder()
    recorder.on_begin(RoundBegun(1, {}, False, {0: {"drawn": 3}, 1: {"drawn": drawn}}))
    recorder.on_exchange(exchange(1, "encode", "down", last=False))
    assert recorder.state() == {"drawn": {"0": 3, "1": 1}}


def test_other_exchanges_leave_no_trace() -> None:
    recorder = Recorder()
    recorder.on_exchange(exchange(0, "step", "up", upload=tensors(0)))
    recorder.on_exchange(exchange(0, "encode", "down", messages=tensors(0)))
    recorder.on_exchange(exchange(0, "encode", "up"))
    recorder.on_exchange(exchange(0, "encode", "up", messages=[]))
    recorder.on_exchange(exchange(0, "decode", "up", gradients=tensors(0)))
    assert not any(recorder.recordings.values())


def test_what_is_kept_is_a_copy_without_a_graph() -> None:
    recorder = Recorder()
    sent = [tensor.requires_grad_() for tensor in tensors(1)]
    recorder.on_exchange(exchange(0, "encode", "up", messages=sent))
    with torch.no_grad():
        sent[0].zero_()
    (recording,) = recorder.recordings[0]
    assert not recording.messages.requires_grad
    assert float(recording.messages[0, 0, 0, 0]) == 1.0


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="limit is 0; it must be at least 1"):
        Recorder(limit=0)


FIRST = torch.zeros(2, 4, 5)
ODD: dict[str, Any] = {
    "a text": "abc",
    "numbers": [1, 2],
    "a table": {"0": FIRST},
    "one tensor": FIRST,
    "two shapes": [FIRST, FIRST[:1]],
    "two dtypes": [FIRST, FIRST.long()],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_are_no_messages_is_not_kept(odd: Any) -> None:
    recorder = Recorder()
    recorder.on_exchange(exchange(0, "encode", "up", messages=tensors(0)))
    recorder.on_exchange(exchange(0, "encode", "up", messages=odd, gradients=odd))
    assert len(recorder.recordings[0]) == 1
    assert recorder.recordings[0][0].gradients is None


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
    assert sorted(recorder.recordings) == [0, 1, 2]
    assert not recorder.recordings[1]
