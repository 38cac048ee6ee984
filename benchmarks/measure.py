"""Shared parts of the benchmarks: medians and spreads, machine facts, load, a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

Row = dict[str, float]


def spread(values: Sequence[float]) -> Row:
    """Return median, quartiles, extremes and count of measured values."""
    low, q1, median, q3, high = np.percentile(values, [0, 25, 50, 75, 100])
    return {
        "median": float(median),
        "q1": float(q1),
        "q3": float(q3),
        "min": float(low),
        "max": float(high),
        "n": len(values),
    }


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keep `number` cores busy with other work."""
    # They end with this process, however it ends.
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    command = [sys.executable, "-c", code]
    loops = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def machine() -> dict[str, Any]:
    """Return facts that figures depend on: processor, cores, memory, load, versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min_at_end": os.getloadavg()[0],
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("flwr", "flwr-splitmix", "ray", "timm", "torch")},
        },
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=100).print(table)


def show_spreads(title: str, figures: dict[str, Any]) -> None:
    """Print every spread of the figures, with its target if it has one."""
    rows = []
    for name, row in figures["spread"].items():
        digits = 3 if name.endswith("ratio") else 1
        target = figures["targets"].get(name)
        rows.append(
            [
                name,
                *(f"{row[key]:.{digits}f}" for key in ("median", "q1", "q3", "min", "max")),
                "" if target is None else f"<= {target['at_most']:g}",
                "" if target is None else "yes" if target["met"] else "no",
            ]
        )
    show(title, ("", "median", "q1", "q3", "min", "max", "target", "met"), rows)


def write(out: Path, figures: dict[str, Any]) -> None:
    """Write the figures as JSON, with facts on this machine."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**figures, "machine": machine()}, indent=2) + "\n")
    print(f"written to {out}")
