"""Runs of a toy over the stream: real gRPC, and ClientApps rebuilt every round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix import Run, SplitClient, adamw
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.observers import Observer
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy
from tests.laws.makers import maker
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app

TOY = Toy(clients=4, tests=6)


def make(name: str, run: Run | None, **options: Any) -> SplitStrategy:
    options = {"optimizer": adamw(0.01), "evaluation": "federated", **options}
    strategy = maker(name)(TOY.upper(), device="cpu", seed=7, run=run, **options)
    assert isinstance(strategy, SplitStrategy)
    return strategy


def start(strategy: SplitStrategy, link: StreamLink, grid: FakeGrid, rounds: int) -> None:
    start_from(TOY.lower().state_dict(), strategy, link, grid, rounds)


def start_from(
    weights: Mapping[str, Tensor],
    strategy: RoundLoop,
    link: StreamLink,
    grid: FakeGrid,
    rounds: int,
) -> None:
    strategy.link = OnFakeGrid(link, grid)
    strategy.start(None, to_arrays(weights), rounds)  # type: ignore[arg-type]


def grid_of(
    name: str, nodes: Path, kind: type[SplitClient] = OneAtATime, **options: Any
) -> FakeGrid:
    shares = make(name, None).mixer.shares
    app = toy_app(TOY, kind, optimizer=adamw(0.01), shares=shares, **options)
    return FakeGrid(app, TOY.clients, **{"state-dir": str(nodes)})


class StopIn(Observer):
    """Raises in the second step of a round."""

    def __init__(self, server_round: int) -> None:
        self.round = server_round

    def on_step(self, event: StepDone) -> None:
        if (event.server_round, event.number) == (self.round, 1):
            raise ZeroDivisionError
