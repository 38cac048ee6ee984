"""What one client of ten that does not do its part costs the others.

The client's labels are wrong, or its smashed data are scaled: as by images that nobody normalised,
or on purpose. The accuracy is that of the nine others, on the test images of the shipped part of
Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.measure import show, write
from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.examples import Example
from flwr_splitmix.strategies import PSL, CutMixSL

CLIENTS, CLASSES, BATCH = 10, 10, 25


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


METHODS: dict[str, Callable[..., Any]] = {
    "PSL, AdamW": PSL,
    "PSL, SGD": lambda upper, **options: PSL(upper, optimizer=_sgd, **options),
    "CutMixSL, AdamW": CutMixSL,
}


class Shifted(Dataset[Example]):
    """A client's images, each with the label of the next class."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        image, label = self.data[index]
        return image, (label + 1) % CLASSES


FAULTS: dict[str, tuple[bool, float]] = {
    "none": (False, 1.0),
    "wrong labels": (True, 1.0),
    "smashed data x 100": (False, 100.0),
    "smashed data x 10,000": (False, 1e4),
}
"""Of client 0: whether its labels are shifted, and the scale of its smashed data."""


def accuracy(method: str, fault: str, rounds: int, seed: int) -> float:
    """Train, and return the accuracy of the clients that do their part."""
    images = load_images("fashion-mnist-small")
    lower, upper = split_vision_model(patch_size=8, depth=2, embed_dim=64, num_heads=4, seed=seed)
    parts = [client_split(images, index, CLIENTS, seed=seed)[0] for index in range(CLIENTS)]
    shifted, factor = FAULTS[fault]
    first = SplitClient(
        deepcopy(lower), Shifted(parts[0]) if shifted else parts[0], batch_size=BATCH
    )
    if factor != 1:
        first.segment.register_forward_hook(lambda module, inputs, smashed: factor * smashed)
    others = [SplitClient(deepcopy(lower), part, batch_size=BATCH) for part in parts[1:]]
    strategy = METHODS[method](upper, seed=seed)
    strategy.fit([first, *others], rounds)
    return statistics.fmean(
        _accuracy(strategy.upper.module, other.segment, images.test) for other in others
    )


@torch.no_grad()
def _accuracy(upper: nn.Module, lower: nn.Module, test: Any) -> float:
    inputs, labels = (
        torch.stack([torch.as_tensor(each) for each in part]) for part in zip(*test, strict=True)
    )
    logits = upper.eval()(lower.eval()(inputs))
    return float((logits.argmax(1) == labels).double().mean())


def measure(rounds: int, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """Measure every fault with these methods."""
    rows = {
        method: {
            fault: statistics.fmean(accuracy(method, fault, rounds, seed) for seed in seeds)
            for fault in FAULTS
        }
        for method in methods
    }
    settings = {"clients": CLIENTS, "batch": BATCH, "rounds": rounds, "seeds": list(seeds)}
    return {"accuracy": rows, "settings": settings}


def print_table(figures: dict[str, Any]) -> None:
    rows = [
        [method, *(f"{100 * row[fault]:.1f} %" for fault in FAULTS)]
        for method, row in figures["accuracy"].items()
    ]
    show("Accuracy of nine clients beside one that is at fault", ("", *FAULTS), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one method and round: is it alive?")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    quick = options.quick
    figures = measure(
        1 if quick else options.rounds,
        (0,) if quick else (0, 1),
        list(METHODS)[:1] if quick else list(METHODS),
    )
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
