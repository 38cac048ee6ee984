"""Time of a split-learning step, compared with the same step unsplit and by Flower messages.

PSL with a joint update, 10 clients with batches of 32 random images. Compared steps alternate
within one process, so that drift of the machine cancels.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any

import torch

from benchmarks.apps.steps.step_app.lenet import CLIENTS
from benchmarks.apps.steps.step_app.models import Unsplit, make_client, vit
from benchmarks.apps.steps.step_app.stopwatch import WARM_UP, Stopwatch
from benchmarks.measure import busy_loops, show_spreads, spread, write
from flwr_splitmix.sandbox.flower import LocalFlower, SandboxError
from flwr_splitmix.sandbox.superlink import end_as_if_asked
from flwr_splitmix.strategies import PSL

APP = Path(__file__).parent / "apps" / "steps"
TARGETS = {"ray_ratio": 1.06, "local_ratio": 1.03, "ray_overhead_ms": 40.0, "ray_small_ms": 60.0}
"""Upper bounds; the ratios are to the unsplit step."""


def time_local(depth: int, repeats: int) -> dict[str, list[float]]:
    """Time steps over a LocalLink, alternating with unsplit steps, in this process."""
    model = vit(depth)
    watch = Stopwatch(Unsplit(model))
    strategy = PSL(
        model.upper,
        server_update="sum",
        optimizer=model.optimizer,
        device="cpu",
        steps_per_round=repeats + WARM_UP + 1,
        observers=[watch],
    )
    strategy.fit([make_client(i, model) for i in range(CLIENTS)], num_rounds=1)
    return {"local_ms": watch.steps, "unsplit_ms": watch.others}


def time_in_run(flower: LocalFlower, model: str, depth: int, repeats: int) -> dict[str, Any]:
    """Run the app and return what it measured.

    Raises
    ------
    SandboxError
        With the run's log, if it failed.
    """
    out = flower.home / f"{model}.json"
    config = f"model='{model}' depth={depth} repeats={repeats} out='{out}'"
    run_id = flower.submit(APP, config, nodes=CLIENTS)
    status, details = flower.wait(run_id, timeout=1800)
    if status != "finished:completed" or not out.exists():
        raise SandboxError(f"the run is {status} {details}: {flower.log(run_id)}")
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def measure(depth: int, repeats: int) -> dict[str, Any]:
    """Measure everything; see the keys of `summarise`."""
    figures: dict[str, Any] = time_local(depth, repeats)
    with LocalFlower() as flower:
        figures |= time_in_run(flower, "vit", depth, repeats)
        figures |= time_in_run(flower, "lenet", depth, repeats)
    threads = figures.pop("server_threads")
    settings = {
        "depth": depth,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "server_threads_in_run": threads,
    }
    return {**summarise(figures), "settings": settings}


def summarise(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians by name, ratios, the spread of each and which targets are met.

    `local_ratio` is to `unsplit_ms`, timed in the same plain process; `ray_ratio` to
    `unsplit_in_run_ms`, timed in the same ServerApp. Both are medians of the pairs' ratios.
    """
    samples = {
        **samples,
        "local_ratio": _ratios(samples["local_ms"], samples["unsplit_ms"]),
        "ray_ratio": _ratios(samples["ray_ms"], samples["unsplit_in_run_ms"]),
    }
    spreads = {name: spread(values) for name, values in samples.items()}
    medians = {name: row["median"] for name, row in spreads.items()}
    return {
        **medians,
        "ray_to_plain_unsplit_ratio": medians["ray_ms"] / medians["unsplit_ms"],
        "messages_to_ray_small_ratio": medians["messages_ms"] / medians["ray_small_ms"],
        "targets": {
            name: {"at_most": bound, "met": medians[name] <= bound}
            for name, bound in TARGETS.items()
        },
        "spread": spreads,
    }


def _ratios(split: list[float], whole: list[float]) -> list[float]:
    return [a / b for a, b in zip(split, whole, strict=True)]


def print_table(figures: dict[str, Any]) -> None:
    show_spreads("Milliseconds a step, 10 clients x 32 images", figures)
    print(f"ray_ms / unsplit_ms {figures['ray_to_plain_unsplit_ratio']:.3f}")
    print(f"messages_ms / ray_small_ms {figures['messages_to_ray_small_ratio']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=15, help="pairs of steps")
    parser.add_argument("--busy-loops", type=int, default=0, help="other programs beside it")
    parser.add_argument("--quick", action="store_true", help="one pair, one block: is it alive?")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    with busy_loops(options.busy_loops):
        figures = measure(*((1, 1) if options.quick else (6, options.repeats)))
    figures["settings"]["busy_loops"] = options.busy_loops
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
