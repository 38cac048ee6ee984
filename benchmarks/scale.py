"""Cost of 10, 100 and 1,000 virtual clients, 10 of which take part in a round.

Measured after every client has trained and has optimizer state: time per step, seconds per round
outside its steps, and the memory (PSS) of all processes of the run together.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import show, spread, write
from flwr_splitmix.sandbox.flower import LocalFlower, SandboxError
from flwr_splitmix.sandbox.superlink import end_as_if_asked

APP = Path(__file__).parent / "apps" / "scale"
STEP_SPREAD, MEMORY_RATIO = 1.2, 1.5
"""Targets: the slowest median step over the fastest; memory with most clients over fewest."""


def measure(clients: int, timed: int, weighed: int, steps: int) -> dict[str, Any]:
    """Run the app with virtual clients, and measure its processes' memory from outside.

    Raises
    ------
    SandboxError
        With the run's log, if it failed or not every client had trained.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, LocalFlower() as flower:
        out = Path(folder)
        config = f"timed-rounds={timed} weighed-rounds={weighed} steps={steps} out='{out}'"
        run_id = flower.submit(APP, config, nodes=clients)
        weights = _weigh(out)
        status, details = flower.wait(run_id, timeout=30)
        if status != "finished:completed" or not weights:
            raise SandboxError(f"the run is {status} {details}: {flower.log(run_id)}")
        figures: dict[str, Any] = json.loads((out / "figures.json").read_text())
    if figures["clients_trained"] != clients:
        raise SandboxError(f"only {figures['clients_trained']} of {clients} clients have trained")
    heaviest = max(weights, key=lambda weight: weight.total())
    return {
        "clients": clients,
        "step_ms": spread(figures["step_ms"]),
        "outside_steps_s": spread(figures["outside_steps_s"]),
        "pss_mib": spread([weight.total() / 2**20 for weight in weights]),
        "pss_mib_by_process": {n: round(b / 2**20, 1) for n, b in heaviest.most_common()},
        "run_s": time.monotonic() - began,
    }


def _weigh(out: Path, timeout: float = 600.0) -> list[Counter[str]]:
    """Sum up PSS by process name, repeatedly while the run is in phase "weighed"."""
    weights: list[Counter[str]] = []
    deadline = time.monotonic() + timeout
    file, phase = out / "phase", ""
    while phase != "over" and time.monotonic() < deadline:
        phase = file.read_text() if file.exists() else ""
        if phase == "weighed":
            weights.append(_pss())
        time.sleep(0.5)
    return weights


def _pss() -> Counter[str]:
    """Return the PSS of this process's descendants by name: pages of n owners count 1/n."""
    weight: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            weight[process.name()] += process.memory_full_info().pss
        except psutil.Error:
            continue
    return weight


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows, their ratios and which targets are met."""
    steps = [row["step_ms"]["median"] for row in rows]
    memory = [row["pss_mib"]["median"] for row in rows]
    ratios = {"step_spread": max(steps) / min(steps), "memory_ratio": memory[-1] / memory[0]}
    bounds = {"step_spread": STEP_SPREAD, "memory_ratio": MEMORY_RATIO}
    return {
        **ratios,
        "targets": {n: {"at_most": b, "met": ratios[n] <= b} for n, b in bounds.items()},
        "runs": rows,
    }


def print_table(figures: dict[str, Any]) -> None:
    rows = [
        [
            f"{row['clients']:,}",
            f"{row['step_ms']['median']:.1f}",
            f"{row['step_ms']['q1']:.1f} - {row['step_ms']['q3']:.1f}",
            f"{row['outside_steps_s']['median']:.2f}",
            f"{row['pss_mib']['median']:.0f}",
            f"{row['pss_mib']['max']:.0f}",
            f"{row['run_s']:.0f}",
        ]
        for row in figures["runs"]
    ]
    heads = ("clients", "step ms", "quartiles", "outside s/round", "PSS MiB", "peak", "run s")
    show("Virtual clients, 10 of them in a round", heads, rows)
    for name, target in figures["targets"].items():
        met = "met" if target["met"] else "not met"
        print(f"{name} {figures[name]:.2f}, target <= {target['at_most']}: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--quick", action="store_true", help="10 clients, a few steps: is it alive?"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    if options.quick:
        rows = [measure(10, timed=1, weighed=2, steps=3)]
    else:
        rows = [measure(clients, timed=5, weighed=5, steps=20) for clients in (10, 100, 1000)]
    figures = summarise(rows)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
