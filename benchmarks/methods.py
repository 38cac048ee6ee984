"""Cost of every strategy beside PSL: milliseconds per step, uplink bytes, and its mixer alone.

LocalLink, ViT-Tiny, 10 clients with batches of 32 random images, joint updates. Each strategy's
steps alternate with PSL's within one process, so that drift of the machine cancels.
"""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmarks.apps.steps.step_app.lenet import BATCH, CLIENTS, images
from benchmarks.measure import show, spread, write
from benchmarks.mixer_parts import PARTS, MixerParts
from flwr_splitmix import SplitClient, adamw, split_vision_model
from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.schedule import constant
from flwr_splitmix.segments import SplitModel, split_shuffled_edge
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy

AT_MOST = 0.03
"""Target: plan, share, merge and split together, as a fraction of a PSL step."""

EDGES = {
    "PatchShuffleSL": {"method": "patch"},
    "BatchShuffleSL": {"method": "batch", "kappa": 0.4},
    "SpectralShuffleSL": {"method": "spectral"},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "CutMixSL, k times": ("CutMixSL", {"k_times": True}),
    "CutMixSL, broadcast": ("CutMixSL", {"gradient": "broadcast"}),
    "CutMixSL, mask per sample": ("CutMixSL", {"mask_per_sample": True}),
    "InputCutMixSL, across clients": ("InputCutMixSL", {"across": "clients"}),
}
"""Options that change a mixer's work; these mixers are timed alone, without whole steps."""


Samples = dict[str, list[float]]
"""Milliseconds by name."""


class Size(NamedTuple):
    """Blocks of the ViT-Tiny, and pixels along the side of a patch."""

    depth: int
    patch: int


def cut(name: str, size: Size) -> SplitModel:
    """Cut the model as a strategy needs it."""
    options: dict[str, Any] = {
        "depth": size.depth, "patch_size": size.patch, "channels": 3, "seed": 0,
    }  # fmt: skip
    if name in EDGES:
        return split_shuffled_edge(**EDGES[name], **options)  # type: ignore[arg-type]
    positions: Any = "upper" if name.startswith("Shuffled") else "lower"
    return split_vision_model(positions=positions, **options)


def make_strategy(name: str, model: SplitModel, **options: Any) -> SplitStrategy:
    """Make a strategy on the CPU, with the options that it requires."""
    if name in EDGES:
        options["labels"] = [images(i, 3)[1] for i in range(CLIENTS)]
    if name.startswith("DP"):
        options["noise"] = GaussianNoise(sigma_s=0.1, sigma_y=0.1)
    return STRATEGIES[name](
        copy.deepcopy(model.upper), server_update="sum", schedule=constant, device="cpu", **options
    )


def make_clients(model: SplitModel) -> list[SplitClient]:
    """Make clients with the same images whatever the strategy."""
    return [
        SplitClient(
            copy.deepcopy(model.lower),
            TensorDataset(*images(i, 3)),
            batch_size=BATCH,
            optimizer=adamw(),
            schedule=constant,
            device="cpu",
        )
        for i in range(CLIENTS)
    ]


class Steps(Observer):
    """Times rounds of one step each: from the plan to the lower segments' backward.

    Parameters
    ----------
    between
        Called after each round.
    """

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self.between = between
        self.ms: list[float] = []

    def on_round(self, event: RoundDone) -> None:
        """Store the step's time."""
        self.ms.append(1000 * event.step_seconds)
        self.between()


def time_steps(name: str, size: Size, repeats: int) -> dict[str, Any]:
    """Time steps of a strategy in turn with steps of PSL; the first pair is not counted."""
    model = cut("PSL", size)
    plain = Steps()
    psl = make_strategy("PSL", model, observers=[plain], steps_per_round=1)
    others = make_clients(model)
    model = cut(name, size)
    steps = Steps(lambda: psl.fit(others, 1))
    strategy = make_strategy(name, model, observers=[steps], steps_per_round=1)
    strategy.fit(make_clients(model), repeats + 1)
    uplink, uplink_psl = (
        float(np.mean([row["uplink_bytes"] for row in s.rows])) for s in (strategy, psl)
    )
    return {
        "ms": steps.ms[1:],
        "psl_ms": plain.ms[1:],
        "uplink_bytes": uplink,
        "uplink_ratio": uplink / uplink_psl,
    }


def time_parts(name: str, size: Size, repeats: int, options: Mapping[str, Any]) -> Samples:
    """Time a strategy's mixer alone; the first of the repeats is not counted."""
    model = cut(name, size)
    parts = MixerParts(make_strategy(name, model, **options).mixer, model.lower.geometry)
    rows = [parts.run() for _ in range(repeats + 1)][1:]
    return {part: [row[part] for row in rows] for part in PARTS}


def measure(size: Size, repeats: int, alone: int) -> dict[str, Any]:
    """Measure everything; see the keys of `summarise`."""
    steps = {}
    for name in STRATEGIES:
        print(f"{name} ...", flush=True)
        steps[name] = time_steps(name, size, repeats)
    forms = {name: (name, dict[str, Any]()) for name, k in STRATEGIES.items() if not k.averages}
    parts = {
        form: time_parts(name, size, alone, options)
        for form, (name, options) in {**forms, **FORMS}.items()
    }
    settings = {**size._asdict(), "repeats": repeats, "alone": alone}
    return {
        **summarise(steps, parts),
        "settings": {**settings, "threads": torch.get_num_threads()},
    }


def summarise(steps: Mapping[str, Any], parts: Mapping[str, Samples]) -> dict[str, Any]:
    """Return spreads, ratios and which targets are met.

    Returns
    -------
    "psl_ms" of all PSL steps; "strategies" by name, of which "ratio" is pair by pair; "mixers" by
    name: medians of the parts in ms, and "fraction", their sum over the median PSL step.
    """
    psl = spread([ms for timed in steps.values() for ms in timed["psl_ms"]])
    strategies = {
        name: {
            "ms": spread(timed["ms"]),
            "ratio": spread([a / b for a, b in zip(timed["ms"], timed["psl_ms"], strict=True)]),
            "uplink_bytes": timed["uplink_bytes"],
            "uplink_ratio": timed["uplink_ratio"],
        }
        for name, timed in steps.items()
    }
    mixers = {}
    for name, samples in parts.items():
        medians = {f"{part}_ms": spread(samples[part])["median"] for part in PARTS}
        mixers[name] = {**medians, "fraction": sum(medians.values()) / psl["median"]}
    met = {name: row["fraction"] <= AT_MOST for name, row in mixers.items()}
    return {
        "psl_ms": psl,
        "strategies": strategies,
        "mixers": mixers,
        "targets": {
            "mixer_fraction": {"at_most": AT_MOST, "met": all(met.values()), "mixers": met}
        },
    }


def print_tables(figures: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{row['ms']['median']:.0f}",
            f"{row['ratio']['median']:.3f}",
            f"{row['ratio']['q1']:.3f} - {row['ratio']['q3']:.3f}",
            f"{row['uplink_bytes'] / 1e6:.2f}",
            f"{row['uplink_ratio']:.3f}",
        ]
        for name, row in figures["strategies"].items()
    ]
    heads = ("", "ms", "to PSL", "quartiles", "uplink MB", "to PSL")
    show(f"A step, {CLIENTS} clients x {BATCH} images", heads, rows)
    rows = [
        [
            name,
            *(f"{row[f'{part}_ms']:.2f}" for part in PARTS),
            f"{100 * row['fraction']:.2f} %",
            "yes" if row["fraction"] <= AT_MOST else "no",
        ]
        for name, row in figures["mixers"].items()
    ]
    show(
        f"Mixers alone, ms a step, target <= {AT_MOST:.0%}",
        ("", *PARTS, "of a PSL step", "met"),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of steps of a strategy")
    parser.add_argument("--quick", action="store_true", help="a small model once: is it alive?")
    options = parser.parse_args()
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    figures = (
        measure(Size(2, 16), 1, 2) if options.quick else measure(Size(6, 4), options.repeats, 30)
    )
    print_tables(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
