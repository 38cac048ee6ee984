"""The cost of recording for attacks: its share of a training step, at its default bounds.

A real run over a `LocalLink`, recorded to disk; the recorder's own time in each step beside the
step's. Without `record-attacks` there is no recorder, and so no cost.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.measure import show, spread, write
from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.trace import DiskTrace
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.events import StepDone
from flwr_splitmix.strategies import STRATEGIES

CASES: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("PSL", "vit_tiny_patch16_224", {"patch_size": 4}, 10),
    ("CutMixSL", "vit_tiny_patch16_224", {"patch_size": 4}, 10),
    ("CutMixSL", "vit_tiny_patch16_224", {"patch_size": 8}, 10),
    ("CutMixSL", "lenet5", {}, 10),
)


class Timed(Recorder):
    """Keeps the seconds of each step, and those that recording took of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder)
        self.ends: list[float] = []
        self.own: list[float] = []

    def on_step(self, event: StepDone) -> None:
        """Record, and time it."""
        began = perf_counter()
        super().on_step(event)
        self.own.append(perf_counter() - began)
        self.ends.append(perf_counter())


def measure(
    method: str, model: str, options: dict[str, Any], clients: int, steps: int, folder: Path
) -> dict[str, Any]:
    """Run so many steps; returns milliseconds of a step and of its recording."""
    images = load_images("fashion-mnist-small")
    lower, upper = split_vision_model(model, seed=0, **options)
    recorder = Timed(folder)
    strategy = STRATEGIES[method](
        upper, device="cpu", steps_per_round=steps + 2, observers=[recorder]
    )
    made = [
        SplitClient(copy.deepcopy(lower), client_split(images, i, clients)[0], device="cpu")
        for i in range(clients)
    ]
    strategy.fit(made, 1)
    own = recorder.own[2:]
    whole = [b - a for a, b in zip(recorder.ends[1:-1], recorder.ends[2:], strict=True)]
    shares = [mine / (all_of_it - mine) for mine, all_of_it in zip(own, whole, strict=True)]
    assert isinstance(recorder.trace, DiskTrace)
    return {
        "method": method,
        "model": model,
        **options,
        "clients": clients,
        "megabytes_a_step": recorder.trace.nbytes / len(recorder.trace.places) / 1e6,
        "step_ms": spread([1e3 * (w - o) for w, o in zip(whole, own, strict=True)]),
        "recording_ms": spread([1e3 * o for o in own]),
        "share_of_a_step": spread(shares),
        "share_in_total": sum(own) / (sum(whole) - sum(own)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps: is it alive?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for number, case in enumerate(CASES[-1:] if options.quick else CASES):
        with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
            steps = 3 if options.quick else (20 if case[1] != "lenet5" else 100)
            rows.append(measure(*case, steps, Path(folder) / str(number)))
    show(
        "Recording for attacks, of a step",
        ("method", "model", "MB a step", "step ms", "recording ms", "share"),
        [
            [
                row["method"],
                f"{row['model']} {row.get('patch_size', '')}",
                f"{row['megabytes_a_step']:.1f}",
                f"{row['step_ms']['median']:.1f}",
                f"{row['recording_ms']['median']:.2f}",
                f"{100 * row['share_in_total']:.1f} %",
            ]
            for row in rows
        ],
    )
    write(options.out, {"threads": 1, "cases": rows})


if __name__ == "__main__":
    main()
