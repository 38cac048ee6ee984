"""Observers go by what an exchange is for: a new one is counted without their knowing its name."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import flwr_splitmix.clients as clients_package
from flwr_splitmix.attacks import recorder as attack_recorder
from flwr_splitmix.clients import Client, SplitClient, exchange
from flwr_splitmix.experiments.baselines import WholeClient
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Exchange, Observer, Phase
from flwr_splitmix.observers import observer as observer_module
from flwr_splitmix.strategies import PSL, USHAPE_STRATEGIES
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import text_toy

TOY = Toy(clients=2, tests=6)
UP, DOWN = 3 * 8, 5 * 8


class Curious(SplitClient):
    """A client with an exchange that nobody has heard of."""

    @exchange
    def statistics(self, *, weights: torch.Tensor) -> dict[str, Any]:
        return {"mean": torch.zeros(3, dtype=torch.float64)}


class Asking(PSL):
    """Asks for it before the first step of every round."""

    phase: Phase | None = None

    def train_round(self, clients: Clients, server_round: int) -> int:
        weights = torch.ones(5, dtype=torch.float64)
        payloads = {client: {"weights": weights} for client in clients.alive}
        if self.phase is None:
            clients.call("statistics", payloads)
        else:
            clients.call("statistics", payloads, phase=self.phase)
        return super().train_round(clients, server_round)


class Seen(Observer):
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def on_exchange(self, event: Exchange) -> None:
        self.exchanges.append(event)


def bytes_of(kind: type[PSL], phase: Phase | None = None) -> tuple[int, int]:
    strategy = kind(TOY.server(), optimizer=sgd(0.1), device="cpu")
    if isinstance(strategy, Asking):
        strategy.phase = phase
    strategy.fit(TOY.make_clients(sgd(0.1), Curious), 1)
    (row,) = strategy.rows
    return row["uplink_bytes"], row["downlink_bytes"]


def test_a_new_exchange_is_counted_unless_it_says_that_it_is_no_training() -> None:
    up, down = bytes_of(PSL)
    assert bytes_of(Asking) == (up + 2 * UP, down + 2 * DOWN)
    assert bytes_of(Asking, "train") == (up + 2 * UP, down + 2 * DOWN)
    assert bytes_of(Asking, "evaluate") == bytes_of(Asking, "calibrate") == (up, down)


def exchanges_of(strategy: Any, toy: Any) -> dict[str, set[str]]:
    strategy.fit(toy.clients_for(strategy), 1)
    (observer,) = (each for each in strategy.observers if isinstance(each, Seen))
    phases: dict[str, set[str]] = {}
    for event in observer.exchanges:
        phases.setdefault(event.phase, set()).add(event.method)
    return phases


def test_the_l_shape_trains_and_evaluates() -> None:
    strategy = PSL(TOY.server(), device="cpu", evaluation="federated", observers=[Seen()])
    assert exchanges_of(strategy, TOY) == {"train": {"step"}, "evaluate": {"encode_test"}}


def test_the_u_shape_trains_evaluates_and_calibrates() -> None:
    toy = text_toy("MixGuard", tests=6)
    strategy = USHAPE_STRATEGIES["MixGuard"](
        toy.server(), device="cpu", evaluation="federated", observers=[Seen()]
    )
    assert exchanges_of(strategy, toy) == {
        "train": {"encode", "decode"},
        "calibrate": {"encode_public", "decode_public"},
        "evaluate": {"encode_test", "decode_test", "score"},
    }


def exchange_names() -> set[str]:
    """Return the names of the exchanges of every client class of the library."""
    members = [kind for kind in vars(clients_package).values() if inspect.isclass(kind)]
    kinds = [*(kind for kind in members if issubclass(kind, Client)), WholeClient]
    return {
        name
        for kind in kinds
        for name, member in inspect.getmembers(kind, callable)
        if getattr(member, "_splitmix_exchange", False)
    }


OBSERVERS = [
    *sorted(Path(inspect.getfile(observer_module)).parent.glob("*.py")),
    Path(inspect.getfile(attack_recorder)),
]
PHASES = {"train", "evaluate", "calibrate"}


def named(file: Path) -> Iterator[str]:
    """Yield the texts in a file, and ".method" wherever an event's is asked for."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute) and node.attr == "method":
            yield ".method"


@pytest.mark.parametrize("file", OBSERVERS, ids=lambda file: file.name)
def test_no_observer_names_an_exchange(file: Path) -> None:
    names = exchange_names()
    assert {"step", "encode", "decode", "encode_test", "encode_public"} <= names
    assert not set(named(file)) & ({".method", *names} - PHASES)
