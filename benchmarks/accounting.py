"""Time of privacy accounting: 100 clients, 10,000 steps, new masks in every step."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import show, spread, write
from flwr_splitmix.privacy import GaussianNoise, Ledger, Release

PATCHES, BATCH, K, DELTA = 64, 50, 2, 1e-5
TARGETS = {"passes_s": 1.0}
"""Upper bounds, in seconds."""

NOISE = GaussianNoise(sigma_s=30.0, sigma_y=10.0)
RELEASE = Release(noise=NOISE, patches=PATCHES, width=192)


def measure(clients: int, steps: int, records: int, repeats: int) -> dict[str, Any]:
    """Time each way of accounting for a run; epsilon must not depend on the way."""
    rng = np.random.default_rng(0)
    ratios = rng.binomial(PATCHES, 1 / K, size=(clients, steps)) / PATCHES
    per_pass = records // BATCH
    epochs = np.arange(steps) // per_pass
    shuffled = [rng.permutation(records) for _ in range(math.ceil(steps / per_pass))]
    batches = np.concatenate(shuffled).reshape(-1, BATCH)[:steps]

    def by_pass() -> list[Ledger]:
        ledgers = [Ledger() for _ in range(clients)]
        for ledger, client_ratios in zip(ledgers, ratios, strict=True):
            ledger.charge_series(RELEASE, client_ratios, epochs=epochs)
        return ledgers

    def by_record() -> list[Ledger]:
        ledgers = [Ledger(records=records) for _ in range(clients)]
        for ledger, client_ratios in zip(ledgers, ratios, strict=True):
            ledger.charge_series(RELEASE, client_ratios, epochs=epochs, records=batches)
        return ledgers

    def one_by_one() -> list[Ledger]:
        ledger = Ledger()
        for ratio, epoch in zip(ratios[0].tolist(), epochs.tolist(), strict=True):
            ledger.charge(
                Release(noise=NOISE, patches=PATCHES, width=192, ratio=ratio), epoch=epoch
            )
        return [ledger]

    ways: dict[str, Callable[[], list[Ledger]]] = {
        "passes_s": by_pass,
        "records_s": by_record,
        "one_client_step_by_step_s": one_by_one,
    }
    spreads, epsilons = {}, {}
    for name, way in ways.items():
        seconds = []
        for _ in range(repeats):
            started = perf_counter()
            spent = [ledger.epsilon(DELTA) for ledger in way()]
            seconds.append(perf_counter() - started)
        spreads[name], epsilons[name] = spread(seconds), spent[0]
    medians = {name: row["median"] for name, row in spreads.items()}
    return {
        **medians,
        "epsilon_of_first_client": epsilons,
        "targets": {
            name: {"at_most": bound, "met": medians[name] <= bound}
            for name, bound in TARGETS.items()
        },
        "spread": spreads,
        "settings": {"clients": clients, "steps": steps, "records": records, "batch": BATCH},
    }


def print_table(figures: dict[str, Any]) -> None:
    rows = []
    for name, row in figures["spread"].items():
        target = figures["targets"].get(name)
        rows.append(
            [
                name,
                *(f"{row[key]:.3f}" for key in ("median", "min", "max")),
                f"{figures['epsilon_of_first_client'][name]:.3f}",
                "" if target is None else f"<= {target['at_most']:g}",
                "" if target is None else "yes" if target["met"] else "no",
            ]
        )
    settings = figures["settings"]
    title = f"Seconds for {settings['clients']} clients x {settings['steps']} steps"
    show(title, ("", "median", "min", "max", "epsilon", "target", "met"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few clients, once: is it alive?")
    options = parser.parse_args()
    figures = measure(
        *((3, 200, 500, 1) if options.quick else (100, 10_000, 1000, options.repeats))
    )
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
