"""Several calls of `fit`: the same clients go on with what they have learned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.events import StepDone
from flwr_splitmix.links.ticket import to_tensors
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL, SFL, CutMixSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd


class Plans(Observer):
    """Keeps the plan of every step, as text."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_step(self, event: StepDone) -> None:
        self.seen.append(str(event.plan))


class Began(SplitClient):
    """Writes down which lower segment each round began with."""

    began: list[dict[str, Tensor]]

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments["number"] == 0:
            state = self.segment.state_dict()
            self.began = [*getattr(self, "began", []), {n: t.clone() for n, t in state.items()}]
        return super().run(method, arguments)


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_another_fit_goes_on_with_what_the_same_clients_have_learned(
    kind: type[SplitStrategy],
) -> None:
    toy = Toy()
    strategy = kind(toy.upper(), device="cpu", steps_per_round=2, optimizer=sgd(0.1))
    clients = toy.make_clients(sgd(0.1), kind=Began)
    first = strategy.fit(clients, 2)
    learned = [copy.deepcopy(client.weights()) for client in clients]
    strategy.fit(clients, 1)
    for client, own in zip(clients, learned, strict=True):
        expected = to_tensors(first.arrays) if kind is SFL else own
        assert isinstance(client, Began)
        assert all(torch.equal(t, expected[name]) for name, t in client.began[2].items())
    strategy.fit(clients, 1, initial_arrays=first.arrays)
    for client in clients:
        assert isinstance(client, Began)
        assert all(
            torch.equal(t, to_tensors(first.arrays)[name]) for name, t in client.began[3].items()
        )


def test_another_fit_of_the_same_clients_draws_anew_and_repeats() -> None:
    def plans() -> list[Any]:
        toy, watch = Toy(), Plans()
        strategy = CutMixSL(toy.upper(), device="cpu", steps_per_round=2, observers=[watch])
        clients = toy.make_clients(sgd(0.1))
        for _ in range(3):
            strategy.fit(clients, 1)
        return watch.seen

    first = plans()
    assert len(first) == 6
    assert len({str(plan) for plan in first}) == 6
    assert str(plans()) == str(first)
