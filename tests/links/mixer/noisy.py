"""Runs of a toy with noise and a third-party mixer, and the same runs without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix import Run, adamw
from flwr_splitmix.clients import NO_DATA, ClientError, Order, PrivacyBudget, exchange
from flwr_splitmix.links import MixerLink, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.observers import LedgerElsewhere
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import DPCutMixSL, DPMixSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app
from tests.links.mixer.third_party import SEED, start

QUIET = Toy(clients=4, batch_norm=False)
"""A toy without BatchNorm, with which no epsilon would be finite."""

DELTA = 1e-5

# On all positions, and not clamped, so that a sum hides more than a single upload.
EVERYWHERE = GaussianNoise(sigma_s=9.0, sigma_y=4.0, smashed_noise="all", clamp_labels=False)
KEPT = GaussianNoise(sigma_s=9.0, sigma_y=4.0)

KINDS: dict[str, Any] = {
    "DPCutMixSL": lambda **options: DPCutMixSL(QUIET.upper(), min_patches=1, **options),
    "DPMixSL": lambda **options: DPMixSL(QUIET.upper(), **options),
}


class Leaves(OneAtATime):
    """A client; client 1 leaves the second round in its second step, and is back in the third."""

    leaves = (2, 1)

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        place = (self.order.server_round, arguments["number"])
        if self.order.client == 1 and place == self.leaves:
            raise ClientError("goes for a walk")
        return super().step(**arguments)


class OneEmpty(OneAtATime):
    """A client; client 1 has no training data."""

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        if order.client == 1:
            raise ClientError(NO_DATA)
        return super().attach(order, arrays)


class LeavesAtOnce(Leaves):
    """A client; client 1 leaves the first round before it has sent anything."""

    leaves = (1, 0)


def noised(kind: str, link: MixerLink | None = None, **more: Any) -> SplitStrategy:
    """Make a strategy with noise, and with the mixer's seed."""
    usual = {
        "optimizer": adamw(0.01), "device": "cpu", "seed": SEED, "server_update": "sum",
        "noise": EVERYWHERE, "delta": DELTA, "trusted_mixer": link is None,
    }  # fmt: skip
    strategy = KINDS[kind](link=link, **{**usual, **more})
    assert isinstance(strategy, SplitStrategy)
    return strategy


def alone(
    kind: str, rounds: int = 3, clients: type[OneAtATime] = OneAtATime, secrets: bool = False,
    **options: Any,
) -> SplitStrategy:  # fmt: skip
    """Run without a third-party mixer; the strategy's ledger assumes that only sums are seen."""
    strategy = noised(kind, **options)
    toy_clients = QUIET.make_clients(adamw(0.01), clients, repeatable_secrets=secrets)
    strategy.fit(toy_clients, rounds)
    return strategy


def direct(
    nodes: Path, kind: str, rounds: int = 3, clients: type[OneAtATime] = OneAtATime,
    toy: Toy = QUIET, **options: Any,
) -> SplitStrategy:  # fmt: skip
    """Run over a stream with nodes, without a third-party mixer; otherwise as in `alone`."""
    strategy = noised(kind, **options)
    grid = _grid(nodes, clients, toy, secrets=False)
    run = strategy.recorder.run
    link = StreamLink(address="127.0.0.1:0", run="" if run is None else run.id)
    strategy.link = OnFakeGrid(link, grid)
    try:
        strategy.start(None, to_arrays(toy.lower().state_dict()), rounds)  # type: ignore[arg-type]
    finally:
        grid.wait()
    return strategy


def _grid(
    nodes: Path, clients: type[OneAtATime], toy: Toy, *, secrets: bool, **options: Any
) -> FakeGrid:
    app = toy_app(toy, clients, optimizer=adamw(0.01), repeatable_secrets=secrets, **options)
    return FakeGrid(app, toy.clients, **{"state-dir": str(nodes)})


def through(
    link: MixerLink, nodes: Path, kind: str, rounds: int = 3,
    clients: type[OneAtATime] = OneAtATime, secrets: bool = False,
    privacy: PrivacyBudget | None = None, toy: Toy = QUIET, **options: Any,
) -> SplitStrategy:  # fmt: skip
    """Run over a third-party mixer; `privacy` is every client's budget."""
    strategy = noised(kind, link, **options)
    grid = _grid(nodes, clients, toy, secrets=secrets, privacy=privacy)
    try:
        start(strategy, grid, rounds, toy)
    finally:
        grid.wait()
    return strategy


def epsilons(strategy: SplitStrategy) -> list[float]:
    """Return the epsilon of each round's row."""
    return [row["epsilon"] for row in strategy.rows]


def elsewhere(strategy: SplitStrategy) -> LedgerElsewhere:
    """Return the strategy's account of the mixer's ledger."""
    assert strategy.ledger is None
    assert strategy.ledger_elsewhere is not None
    return strategy.ledger_elsewhere


def summary_of(run: Run) -> dict[str, Any]:
    assert run.summary is not None
    return run.summary


def new_run(home: Path, name: str) -> Run:
    return Run.create({}, name=name, home=home)
