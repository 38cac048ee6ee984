"""Fixtures: a small cell of any method, and its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments import SCALES, Cell, variant
from flwr_splitmix.experiments.cell_runs import held_run
from flwr_splitmix.experiments.running import run_cell
from flwr_splitmix.runs import Run

SMALL = "fashion-mnist-small"

RunCell = Callable[..., Run]


def cell_of(
    method: str, *, seed: int = 0, epochs: int = 2, clients: int = 3, **options: Any
) -> Cell:
    """Return a cell at scale smoke."""
    return SCALES["smoke"].cell(variant(method, options, clients=clients), seed=seed, epochs=epochs)


@pytest.fixture
def run(tmp_path: Path) -> RunCell:
    """Run cells in a home directory of this test; continue a run that a cell has there."""

    def call(
        cell: Cell,
        on_round: Callable[[RoundDone], None] = lambda event: None,
        home: str = "home",
    ) -> Run:
        with held_run(cell, tmp_path / home, SMALL) as cell_run:
            run_cell(cell, cell_run, SMALL, device="cpu", on_round=on_round)
        return cell_run

    return call
