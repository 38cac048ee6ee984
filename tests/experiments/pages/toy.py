"""A small named experiment, and made-up runs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Entry, Experiment, Ordering, variant
from flwr_splitmix.experiments.experiment import CIFAR, ordered
from flwr_splitmix.runs import Run

SMOKE = SCALES["smoke"]
SMALL = "fashion-mnist-small"
COLUMNS = ("n = 2", "n = 3", "n = 4")

TOY = Experiment(
    "toy",
    "a toy",
    "MixGuard, Table 0",
    (
        *(
            Entry(method, f"n = {n}", variant(method, clients=n), {CIFAR: 50.0 + n})
            for method in ("PSL", "SFL", "CutMixSL")
            for n in (2, 3, 4)
        ),
        Entry("other", "n = 2", None, {CIFAR: 1.0}),
    ),
    (
        *ordered(("PSL", "SFL", "CutMixSL"), COLUMNS),
        Ordering(("SFL", "n = 2"), ("PSL", "n = 2"), "uplink"),
        Ordering(("PSL", "n = 2"), ("PSL", "n = 4")),
    ),
    "a note",
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Add the toy to the named experiments."""
    monkeypatch.setitem(EXPERIMENTS, TOY.name, TOY)
    return TOY


def finish(home: Path, row: str, column: str, seed: int, top1: float, **options: Any) -> str:
    """Write a finished run for a place; return the cell's id."""
    (cell,) = (
        cell
        for entry, cell in TOY.cells(SMOKE, seeds=[seed], **options)
        if entry.place == (row, column)
    )
    run = Run.create({**cell.config, "source": str(home)}, name="cell", home=home)
    run.write_summary(
        {
            "top1": top1,
            "rounds": 2,
            "uplink_bytes": 8_000_000 + 2_000_000 * (row == "SFL"),
            "downlink_bytes": 4_000_000,
            "versions": {"flwr-splitmix": "0.1.0", "torch": "2.9"},
            "wall_s": 3.25,
        }
    )
    return cell.id
