"""Cost of recording for attacks, as a share of a training step, with the recorder's default limits.

A real run over a `LocalLink` is recorded to disk, which a thread writes beside the steps. Rounds
with and without recording alternate. Besides the difference of their times, the benchmark reports
the time for which the recorder itself holds up each step, and the processor time of all threads
together, which other work on the machine affects less. Without `record-attacks` there is no
recorder.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.measure import show, spread, write
from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.events import RoundDone, StepDone
from flwr_splitmix.strategies import STRATEGIES

CASES: tuple[tuple[str, str, dict[str, Any], int, int], ...] = (
    ("PSL", "vit_tiny_patch16_224", {"patch_size": 4}, 6, 2),
    ("CutMixSL", "vit_tiny_patch16_224", {"patch_size": 4}, 6, 2),
    ("CutMixSL", "vit_tiny_patch16_224", {"patch_size": 8}, 12, 4),
    ("CutMixSL", "lenet5", {}, 60, 20),
)
"""Method, model, its options, rounds, and steps per round."""

CLIENTS = 10


class EveryOther(Recorder):
    """Records every other round, and times all rounds.

    Attributes
    ----------
    held_up
        Seconds for which recording held up each recorded step.
    step_seconds
        Seconds per step of each round, with the wait at its end, by whether it was recorded.
    processor_seconds
        The same in processor time of all threads together.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder)
        self.held_up: list[float] = []
        self.step_seconds: dict[bool, list[float]] = {True: [], False: []}
        self.processor_seconds: dict[bool, list[float]] = {True: [], False: []}
        self._since = process_time()

    def on_step(self, event: StepDone) -> None:
        """Record the step in rounds with even numbers."""
        if event.server_round % 2:
            return
        began = perf_counter()
        super().on_step(event)
        self.held_up.append(perf_counter() - began)

    def on_round(self, event: RoundDone) -> None:
        """Store the round's seconds, except for the first two rounds, which warm up."""
        began = perf_counter()
        super().on_round(event)
        waited = perf_counter() - began
        used, self._since = process_time() - self._since, process_time()
        if event.server_round > 2:
            recorded = event.server_round % 2 == 0
            self.step_seconds[recorded].append((event.step_seconds + waited) / event.steps)
            self.processor_seconds[recorded].append(used / event.steps)


def measure(
    method: str, model: str, options: dict[str, Any], rounds: int, steps: int, folder: Path
) -> dict[str, Any]:
    """Run rounds, and two to warm up; return milliseconds of a step with and without recording."""
    images = load_images("fashion-mnist-small")
    lower, upper = split_vision_model(model, seed=0, **options)
    recorder = EveryOther(folder)
    strategy = STRATEGIES[method](upper, device="cpu", steps_per_round=steps, observers=[recorder])
    clients = [
        SplitClient(copy.deepcopy(lower), client_split(images, i, CLIENTS)[0], device="cpu")
        for i in range(CLIENTS)
    ]
    strategy.fit(clients, rounds + 2)
    trace = recorder.trace
    assert isinstance(trace, DiskTrace)
    on, off = (
        [1e3 * s for s in recorder.step_seconds[is_recorded]] for is_recorded in (True, False)
    )
    busy_on, busy_off = (
        [1e3 * s for s in recorder.processor_seconds[is_recorded]] for is_recorded in (True, False)
    )
    return {
        "method": method,
        "model": model,
        **options,
        "clients": CLIENTS,
        "megabytes_a_step": trace.nbytes / len(trace.places) / 1e6,
        "step_ms": spread(off),
        "recorded_step_ms": spread(on),
        "held_up_ms": spread([1e3 * s for s in recorder.held_up]),
        "added": float(np.median(on) / np.median(off) - 1),
        "processor_ms": spread(busy_off),
        "recorded_processor_ms": spread(busy_on),
        "added_processor": float(np.median(busy_on) / np.median(busy_off) - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps: is it alive?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)  # where a trace is written, on its disk
    rows = []
    for number, case in enumerate(CASES[-1:] if options.quick else CASES):
        with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
            length = (2, 2) if options.quick else case[3:]
            rows.append(measure(*case[:3], *length, Path(folder) / str(number)))
    show(
        "Recording for attacks, of a step",
        (
            "method",
            "model",
            "MB a step",
            "step ms",
            "recorded ms",
            "held up ms",
            "added",
            "processor",
        ),
        [
            [
                row["method"],
                f"{row['model']} {row.get('patch_size', '')}",
                f"{row['megabytes_a_step']:.1f}",
                f"{row['step_ms']['median']:.1f}",
                f"{row['recorded_step_ms']['median']:.1f}",
                f"{row['held_up_ms']['median']:.2f}",
                f"{100 * row['added']:.1f} %",
                f"{100 * row['added_processor']:.1f} %",
            ]
            for row in rows
        ],
    )
    write(options.out, {"threads": 1, "cases": rows})


if __name__ == "__main__":
    main()
