"""Cost of a node's guards: a charge and an audit line written to disk before each upload.

Milliseconds per step, with and without waiting for the disk, and milliseconds to open the ledger of
a long run, as every round's new process does: for the first time, which sums it up, and later.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.measure import show, spread, write
from flwr_splitmix.links.node.audit import AuditLog
from flwr_splitmix.privacy import GaussianNoise, Release
from flwr_splitmix.privacy.ledger_file import LedgerFile

BATCH, RECORDS, DELTA = 32, 6000, 1e-5
RELEASE = Release(noise=GaussianNoise(sigma_s=30.0, sigma_y=10.0), patches=64, width=192)
REPLY = {"smashed": [torch.zeros(BATCH, 32, 192)], "labels": [torch.zeros(BATCH, 10)]}
SHARE = [{"share": "noisy", "inner": {"share": "patches", "lam": 0.5}, "classes": 10}]


@contextmanager
def no_waiting(active: bool) -> Iterator[None]:
    """Skip waiting for the disk if `active`, to measure its cost."""
    if not active:
        yield
        return
    with patch.object(os, "fsync", lambda file: None):
        yield


def milliseconds(act: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        began = perf_counter()
        act()
        times.append(1e3 * (perf_counter() - began))
    return times


def measure(folder: Path, repeats: int, long: int) -> dict[str, Any]:
    """Time charges and audit lines, and the opening of a ledger with `long` steps."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[float]] = {}
    for name, skip in (("", False), ("_without_fsync", True)):
        ledger = LedgerFile(folder / f"ledger{name}", "run", RECORDS)
        audit = AuditLog(folder / f"audit{name}", {"run": "run", "round": 1}, strict=True)

        def charge(ledger: LedgerFile = ledger) -> None:
            records = rng.integers(RECORDS, size=BATCH)
            ledger.ledger.would_exceed(RELEASE, max_epsilon=1e9, delta=DELTA, records=records)
            ledger.charge(ledger.ledger.price(RELEASE), records)

        def line(audit: AuditLog = audit) -> None:
            audit.write("step", REPLY, step=1, share=SHARE, epsilon=1.0)

        with no_waiting(skip):
            rows[f"charge{name}_ms"] = milliseconds(charge, repeats)
            rows[f"audit_line{name}_ms"] = milliseconds(line, repeats)
    grown = LedgerFile(folder / "long", "run", RECORDS)
    with no_waiting(True):
        for _ in range(long):
            grown.charge(grown.ledger.price(RELEASE), rng.integers(RECORDS, size=BATCH))
    for name, times in (("open_long_ledger_ms", 1), ("open_summed_ledger_ms", 5)):
        rows[name] = milliseconds(lambda: LedgerFile(folder / "long", "run", RECORDS), times)
    spreads = {name: spread(values) for name, values in rows.items()}
    return {
        **{name: row["median"] for name, row in spreads.items()},
        "spread": spreads,
        "settings": {"batch": BATCH, "records": RECORDS, "long": long, "repeats": repeats},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps: is it alive?")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
        figures = measure(Path(folder), *((20, 50) if options.quick else (500, 10_000)))
    show(
        "Milliseconds of a node's guards",
        ("", "median", "min", "max"),
        [
            [name, *(f"{row[key]:.3f}" for key in ("median", "min", "max"))]
            for name, row in figures["spread"].items()
        ],
    )
    write(options.out, figures)


if __name__ == "__main__":
    main()
