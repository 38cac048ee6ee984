"""Runs of five clients of which one lies at the end of a round, as it likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.clients.client import Order
from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Toy, sgd

Arrays = dict[str, Tensor]
Metrics = dict[str, Any]

TOY = Toy(clients=5, examples=48, tests=60, dropout=0.0, batch_norm=False)
LIAR = 4
ROUNDS = 6


class Liar(SplitClient):
    """Takes part like any other, and lies where a subclass does."""

    facts: Mapping[str, Any] = {}
    arrays: Callable[[Arrays], Arrays] = staticmethod(lambda arrays: arrays)
    metrics: Callable[[Metrics], Metrics] = staticmethod(lambda metrics: metrics)

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        return {**super().attach(order, arrays), **self.facts}

    def release(self) -> tuple[Arrays, Metrics]:
        arrays, metrics = super().release()
        return type(self).arrays(arrays), type(self).metrics(metrics)


class Rounds(Observer):
    """Keeps what it is told of each round."""

    def __init__(self) -> None:
        self.events: list[RoundDone] = []

    def on_round(self, event: RoundDone) -> None:
        self.events.append(event)

    @property
    def accuracy(self) -> float:
        """Top-1 after the last round."""
        shown = self.events[-1].evaluation
        assert shown is not None
        return shown.accuracy

    @property
    def failures(self) -> dict[int, str]:
        """Why clients were left out of any round."""
        return {c: why for event in self.events for c, why in event.failures.items()}


def liar(
    arrays: Callable[[Arrays], Arrays] | None = None,
    metrics: Callable[[Metrics], Metrics] | None = None,
    **facts: Any,
) -> type[Liar]:
    """Make the class of a client that says other arrays, metrics or facts of itself."""
    attributes: dict[str, Any] = {"facts": {name.replace("_", "-"): v for name, v in facts.items()}}
    if arrays is not None:
        attributes["arrays"] = staticmethod(arrays)
    if metrics is not None:
        attributes["metrics"] = staticmethod(metrics)
    return type("OneLiar", (Liar,), attributes)


def clients_with(kind: type[Liar] | None, toy: Toy = TOY) -> list[SplitClient]:
    """Make the clients, the last of which is a liar; None: all are honest."""
    clients = list(toy.make_clients(sgd(0.1)))
    if kind is not None:
        clients[-1] = toy.make_clients(sgd(0.1), kind=kind)[-1]
    return clients


def fit(kind: type[Liar] | None, toy: Toy = TOY, rounds: int = ROUNDS, **options: Any) -> Rounds:
    """Run SFL with a liar among the clients, scored on the tests that all of them have."""
    observer = Rounds()
    options = {"evaluation": "federated", "steps_per_round": 12, **options}
    strategy = SFL(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", observers=[observer],
        **options,
    )  # fmt: skip
    strategy.fit(clients_with(kind, toy), rounds)
    return observer


def everywhere(value: float) -> Callable[[Arrays], Arrays]:
    """Put one number everywhere."""
    return lambda arrays: {name: torch.full_like(t, value) for name, t in arrays.items()}
