"""Runs of a toy with a third-party mixer, and the same runs without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from flwr.serverapp import Grid

from flwr_splitmix import Run, adamw
from flwr_splitmix.links import Link, MixerLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.server.evaluation.central import EvaluateFn
from flwr_splitmix.strategies import CutMixSL, MixupSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app

TOKEN = "c0ffee" * 8
SERVER_APP = "server-app"
"""Name in the certificate of a ServerApp."""

SEED = 2**62 + 20_26

TOY = Toy(clients=4)
SEVERAL = Toy(clients=4, multi_label=True)

MAKERS: dict[str, Any] = {
    "CutMixSL": lambda **options: CutMixSL(TOY.upper(), min_patches=1, **options),
    "CutMixSL by epoch": lambda **options: CutMixSL(
        TOY.upper(), min_patches=1, regroup="epoch", epochs_per_round=2, **options
    ),
    "MixupSL": lambda **options: MixupSL(TOY.upper(), **options),
}


def secret(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def make(name: str, link: Link | None = None, run: Run | None = None, **more: Any) -> SplitStrategy:
    """Make a strategy for the toy, with the mixer's seed."""
    usual = {"optimizer": adamw(0.01), "device": "cpu", "seed": SEED, "server_update": "sum"}
    strategy = MAKERS[name](link=link, run=run, **{**usual, **more})
    assert isinstance(strategy, SplitStrategy)
    return strategy


def grid_of(nodes: Path, toy: Toy = TOY, **options: Any) -> FakeGrid:
    """Make a grid with a toy's clients, whose states are stored in a folder."""
    app = toy_app(toy, optimizer=adamw(0.01), **{"kind": OneAtATime, **options})
    return FakeGrid(app, toy.clients, **{"state-dir": str(nodes)})


def start(
    strategy: SplitStrategy,
    grid: FakeGrid,
    rounds: int,
    toy: Toy = TOY,
    evaluate_fn: EvaluateFn | None = None,
) -> None:
    """Run a strategy that has a `MixerLink` on a grid in this process."""
    assert isinstance(strategy.link, MixerLink)
    strategy.link = OnFakeGrid(strategy.link, grid)
    initial, no_grid = to_arrays(toy.lower().state_dict()), cast(Grid, None)
    strategy.start(no_grid, initial, rounds, evaluate_fn=evaluate_fn)
