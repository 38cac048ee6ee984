"""Finite numbers that overflow in the trunk cost their sender the round, and nobody else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.events import Messages
from flwr_splitmix.server.segments.trunk import TrainedTrunk
from flwr_splitmix.testing.laws import TextToy
from tests.strategies.test_ushape import faulty, first
from tests.strategies.test_ushape_hostile import failures_of


@pytest.mark.parametrize(("method", "name"), [("encode", "messages"), ("decode", "gradients")])
def test_finite_numbers_that_would_overflow_cost_their_sender_the_round(
    method: str, name: str
) -> None:
    def large(reply: dict[str, Any]) -> dict[str, Any]:
        return first(reply, name, lambda tensor: torch.full_like(tensor, -1e30))

    (sentence,) = failures_of(TextToy(kind=faulty(method, large))).values()
    assert "sent numbers beyond 1e+06, which would overflow in the model" in sentence


class Steep(nn.Module):
    """A trunk whose answer, or whose gradient, is not finite at some finite inputs."""

    def __init__(self, bend: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.own = nn.Linear(5, 5).double()
        self.bend = bend

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Bend, then map."""
        out: Tensor = self.own(self.bend(hidden))
        return out


def test_who_overflows_in_the_forward_pass_is_left_out_before_anybody_is_answered() -> None:
    def large(reply: dict[str, Any]) -> dict[str, Any]:
        return first(reply, "messages", lambda tensor: torch.full_like(tensor, 1e5))

    def overflows(hidden: Tensor) -> Tensor:
        return torch.where(hidden.abs() > 100, hidden * 1e305, hidden)

    failures = failures_of(TextToy(kind=faulty("encode", large)), Steep(overflows))
    assert failures == {1: "its messages overflow in the trunk"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_client_is_blamed_for_a_trunk_that_is_not_finite_itself(value: float) -> None:
    """Their messages overflow in the trunk, all of them."""
    trunk = Steep(torch.tanh)
    with torch.no_grad():
        trunk.own.weight[2, 3] = value
    with pytest.raises(ValueError, match=r"^the trunk's weights own\.weight have NaN or infinite"):
        failures_of(TextToy(), trunk)


def test_who_overflows_in_the_backward_pass_is_left_out_and_the_trunk_stays_whole() -> None:
    def zero(reply: dict[str, Any]) -> dict[str, Any]:
        return first(reply, "messages", torch.zeros_like)

    def root(hidden: Tensor) -> Tensor:  # at 0 its derivative is infinite
        return hidden.sign() * hidden.abs().sqrt()

    failures = failures_of(TextToy(kind=faulty("encode", zero), dropout=0.0), Steep(root))
    assert failures == {1: "its messages or gradients overflow in the trunk"}


def two(*numbers: float) -> dict[int, Messages]:
    mask = torch.ones(1, 2, dtype=torch.uint8)
    return {c: Messages([torch.full((1, 2, 5), n)], mask) for c, n in enumerate(numbers)}


def whole(segment: TrainedTrunk) -> bool:
    """Whether weights and Adam's averages are finite."""
    return all(bool(t.isfinite().all()) for t in segment.state()[0].values())


@pytest.mark.parametrize(
    ("bend", "hidden", "blamed"),
    [
        (lambda h: h.sign() * h.abs().sqrt(), (1.0, 0.0), {1}),  # comes back to it as infinite
        (lambda h: 1e14 * h, (1e-6, 1e6), {1}),  # only in the weights' gradient, or its square
        (lambda h: 1e14 * h, (1e5, 1e5), {0, 1}),
    ],
    ids=["messages", "weights", "both"],
)
def test_who_overflows_in_the_backward_pass_is_told_from_who_does_not(
    bend: Callable[[Tensor], Tensor], hidden: tuple[float, ...], blamed: set[int]
) -> None:
    segment = TrainedTrunk(Steep(bend).float(), device="cpu")
    before = {name: t.clone() for name, t in segment.state()[0].items()}
    segment.forward(two(*hidden), 0)
    gradients = segment.learn({c: [torch.full((1, 2, 5), 1e3)] for c in (0, 1)}, 0.5, 1)
    assert {0, 1} - gradients.keys() == blamed
    assert all(bool(g.isfinite().all()) for parts in gradients.values() for g in parts)
    assert segment.state()[0].keys() == before.keys()  # no step, so no averages of Adam's
    assert all(torch.equal(t, before[name]) for name, t in segment.state()[0].items())
    segment.forward(two(1e-8), 0)
    assert segment.learn({0: [torch.ones(1, 2, 5)]}, 0.5, 1).keys() == {0}
    assert whole(segment)
    assert not torch.equal(segment.state()[0]["trunk.own.weight"], before["trunk.own.weight"])


def test_who_overflows_and_does_not_answer_spoils_nothing() -> None:
    """A gradient of 0 times an infinite derivative is not a number."""

    class RootOfWeights(Steep):
        def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = self.own(hidden)
            return out.abs().sqrt()

    trunk = RootOfWeights(torch.abs).float()
    trunk.own.bias.data.zero_()
    segment = TrainedTrunk(trunk, device="cpu")
    segment.forward(two(1.0, 0.0), 0)
    assert segment.learn({0: [torch.ones(1, 2, 5)]}, 0.5, 1).keys() == {0}
    assert whole(segment)
