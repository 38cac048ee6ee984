"""Time of a U-shaped step relative to the unsplit step, and of MixGuard's relative to its passes.

A Qwen3-shaped model of 50 million parameters with random weights, cut after its first and before
its last layer; one client, 4 texts of 64 tokens. Compared steps alternate within one process, so
that drift of the machine cancels.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.apps.ushape.ushape_app.models import (
    SECRET_TOKENS,
    SIZES,
    K,
    M,
    Passes,
    Unsplit,
    build,
    mixguard_client,
    parameters,
    plain_client,
)
from benchmarks.apps.ushape.ushape_app.stopwatch import time_here
from benchmarks.measure import show_spreads, spread, write
from flwr_splitmix.sandbox.flower import LocalFlower, SandboxError
from flwr_splitmix.sandbox.superlink import end_as_if_asked

APP = Path(__file__).parent / "apps" / "ushape"
RATIOS = {
    "local_ratio": ("local_ms", "unsplit_ms"),
    "ray_ratio": ("ray_ms", "unsplit_in_run_ms"),
    "mixguard_ratio": ("mixguard_ms", "passes_ms"),
    "refined_ratio": ("refined_ms", "refined_passes_ms"),
}
"""Pairs to compare, timed one after the other; each ratio is the median over pairs."""

TARGETS = {"local_ratio": 1.05, "ray_ratio": 1.15, "mixguard_ratio": 1.15}
"""Upper bounds."""

Samples = dict[str, list[float]]
"""Milliseconds by name."""


def time_local(name: str, repeats: int) -> Samples:
    """Time everything that needs no Flower run, in this process."""
    size = SIZES[name]
    parts = build(size)
    figures: Samples = {}

    def pairs(kind: str, other: str, client: Any, between: Any) -> None:
        _, trunk, _ = build(size).all_here()
        figures[kind], figures[other] = time_here(client, trunk, between, repeats)

    pairs("local_ms", "unsplit_ms", plain_client(parts, size), Unsplit(parts, size))
    for kind, other, refined in (
        ("mixguard_ms", "passes_ms", False),
        ("refined_ms", "refined_passes_ms", True),
    ):
        client = mixguard_client(parts, size, refined=refined)
        pairs(kind, other, client, Passes(parts, size, refined=refined))
    return figures


def time_in_run(name: str, repeats: int) -> Samples:
    """Time steps over a RayLink inside a Flower run.

    Raises
    ------
    SandboxError
        With the run's log, if it failed.
    """
    with LocalFlower() as flower:
        out = flower.home / "ushape.json"
        threads = torch.get_num_threads()
        config = f"size='{name}' repeats={repeats} threads={threads} out='{out}'"
        run_id = flower.submit(APP, config, nodes=1)
        status, details = flower.wait(run_id, timeout=1800)
        if status != "finished:completed" or not out.exists():
            raise SandboxError(f"the run is {status} {details}: {flower.log(run_id)}")
        figures: Samples = json.loads(out.read_text())
        return figures


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Measure everything; see the keys of `summarise`."""
    samples = {**time_local(name, repeats), **time_in_run(name, repeats)}
    settings = {
        **asdict(SIZES[name]),
        "parameters": parameters(build(SIZES[name])),
        "k": K,
        "m": M,
        "secret_tokens": SECRET_TOKENS,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }
    return {**summarise(samples), "settings": settings}


def summarise(samples: Samples) -> dict[str, Any]:
    """Return medians by name, the ratios of `RATIOS`, all spreads, and which targets are met."""
    ratios = {
        name: [a / b for a, b in zip(samples[split], samples[other], strict=True)]
        for name, (split, other) in RATIOS.items()
    }
    spreads = {name: spread(values) for name, values in {**samples, **ratios}.items()}
    medians = {name: row["median"] for name, row in spreads.items()}
    return {
        **medians,
        "targets": {
            name: {"at_most": bound, "met": medians[name] <= bound}
            for name, bound in TARGETS.items()
        },
        "spread": spreads,
    }


def print_table(figures: dict[str, Any]) -> None:
    millions = figures["settings"]["parameters"] / 1e6
    show_spreads(f"Milliseconds a step, {millions:.1f} million parameters", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=9, help="pairs of steps")
    parser.add_argument("--quick", action="store_true", help="a small model: is it alive?")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    figures = measure(*(("small", 2) if options.quick else ("full", options.repeats)))
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
