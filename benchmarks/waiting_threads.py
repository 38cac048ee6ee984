"""Cost of OpenMP's wait policies on an idle and on a busy machine.

Forward and backward passes of ViT-Tiny are timed with two threads. Settings are read when torch is
loaded, so each is timed in processes of its own; these take turns, so that drift of the machine
cancels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, busy_loops, show, spread, write
from flwr_splitmix.threads import POLICY

IMAGES, THREADS, LOOPS = 50, 2, 2
IDLE, BUSY = "idle", f"beside {LOOPS} busy loops"
SPINNING, PASSIVE = "spinning", "passive"
WARM_UP = 3

SETTINGS: dict[str, Mapping[str, str]] = {
    SPINNING: {"GOMP_SPINCOUNT": "300000"},  # what libgomp does when nothing is set
    PASSIVE: POLICY,
    **{f"passive, {n} spins": {**POLICY, "GOMP_SPINCOUNT": str(n)} for n in (0, 3000, 10000)},
    "one thread": {**POLICY, "OMP_NUM_THREADS": "1"},
}
TARGETS = {"idle_ratio": 1.02, "busy_ratio": 2.5}
"""Upper bounds: the passive step over the spinning one, and busy over idle for the passive step."""


def time_steps(repeats: int, depth: int) -> list[float]:
    """Return the milliseconds of forward and backward passes in this process."""
    import torch

    from flwr_splitmix import split_vision_model

    segments = split_vision_model(patch_size=8, depth=depth, seed=0)
    model = torch.nn.Sequential(segments.lower, segments.upper)
    images = torch.randn(IMAGES, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    milliseconds = []
    for _ in range(WARM_UP + repeats):
        began = time.perf_counter()
        model(images).sum().backward()
        milliseconds.append(1000 * (time.perf_counter() - began))
        model.zero_grad(set_to_none=True)
    return milliseconds[WARM_UP:]


def time_elsewhere(setting: Mapping[str, str], repeats: int, depth: int) -> list[float]:
    """Time steps in a new process with a setting."""
    variables = {"OMP_NUM_THREADS": str(THREADS), **setting}
    others = {name: value for name, value in os.environ.items() if name not in POLICY}
    command = [sys.executable, "-m", "benchmarks.waiting_threads", "--steps", str(repeats)]
    process = subprocess.run(
        [*command, "--depth", str(depth)],
        env={**others, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    timed: list[float] = json.loads(process.stdout)
    return timed


def measure(turns: int, repeats: int, depth: int) -> dict[str, Any]:
    """Time every setting on an idle and a busy machine; see the keys of the result."""
    milliseconds: dict[str, dict[str, Row]] = {name: {} for name in SETTINGS}
    for company, loops in ((IDLE, 0), (BUSY, LOOPS)):
        timed: dict[str, list[float]] = {name: [] for name in SETTINGS}
        with busy_loops(loops):
            for _ in range(turns):
                for name, setting in SETTINGS.items():
                    timed[name] += time_elsewhere(setting, repeats, depth)
        for name, values in timed.items():
            milliseconds[name][company] = spread(values)
    passive, spinning = (milliseconds[name][IDLE]["median"] for name in (PASSIVE, SPINNING))
    ratios = {
        "idle_ratio": passive / spinning,
        "busy_ratio": milliseconds[PASSIVE][BUSY]["median"] / passive,
    }
    targets = {
        name: {"at_most": bound, "met": ratios[name] <= bound} for name, bound in TARGETS.items()
    }
    settings = {"turns": turns, "repeats": repeats, "depth": depth, "threads": THREADS}
    environments = {name: dict(setting) for name, setting in SETTINGS.items()}
    return {
        "ms": milliseconds,
        **ratios,
        "targets": targets,
        "environments": environments,
        "settings": settings,
    }


def print_table(figures: dict[str, Any]) -> None:
    """Print the medians of every setting, with the quartiles."""
    rows = []
    for name, by_company in figures["ms"].items():
        cells = [
            f"{row['median']:.0f} ({row['q1']:.0f} - {row['q3']:.0f})"
            for row in (by_company[IDLE], by_company[BUSY])
        ]
        rows.append([name, *cells])
    title = f"Milliseconds of a step with {IMAGES} images, {THREADS} threads: median (quartiles)"
    show(title, ("", IDLE, BUSY), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the figures; needed")
    parser.add_argument("--turns", type=int, default=5, help="processes of each setting")
    parser.add_argument("--repeats", type=int, default=20, help="steps of each process")
    parser.add_argument("--quick", action="store_true", help="one step, one block: is it alive?")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--depth", type=int, default=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps:
        print(json.dumps(time_steps(options.steps, options.depth)))
        return
    if options.out is None:
        parser.error("--out is needed")
    figures = measure(*((1, 1, 1) if options.quick else (options.turns, options.repeats, 6)))
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
