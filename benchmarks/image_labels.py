"""Labels of images in the U shape, read from the gradients that clients return.

Labels stay with the client, but the gradient of an image's loss points away from its class. The
server knows the labels of a few of a client's images, and gives every other image the label of the
known ones whose mean gradient of the round has the most similar direction. `USplitFL`, four
clients, the shipped part of Fashion-MNIST, a ViT of three blocks with one each in head and tail.
"""

from __future__ import annotations

import argparse
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import show, write
from flwr_splitmix import UShapeClient
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.events import StepDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.segments import split_vision_parts
from flwr_splitmix.strategies import USplitFL

CLIENTS, BATCH, CLASSES, SEED = 4, 50, 10, 0
KNOWN = (1, 5)
"""Images of each class whose labels the server knows."""


class Returned(Observer):
    """Keeps the gradients that client 0 returns, by round and number of the batch."""

    def __init__(self) -> None:
        self.gradients: dict[int, list[Tensor]] = {}

    def on_step(self, event: StepDone) -> None:
        """Keep the gradients (b, T d) of a step."""
        kept = self.gradients.setdefault(event.server_round, [])
        kept.append(event.returned[0][0].flatten(1).float())


def train(rounds: int) -> tuple[dict[int, list[Tensor]], Tensor, list[float]]:
    """Return client 0's gradients by round, its labels, and the accuracy after each round."""
    images = load_images("fashion-mnist-small")
    head, trunk, tail = split_vision_parts(
        patch_size=8, depth=3, embed_dim=64, num_heads=4, seed=SEED
    )
    parts = [client_split(images, index, CLIENTS)[0] for index in range(CLIENTS)]
    clients = [
        UShapeClient(
            deepcopy(head), deepcopy(tail), part, batch_size=BATCH, benchmark_data=images.test
        )
        for part in parts
    ]
    seen = Returned()
    strategy = USplitFL(trunk, evaluation="benchmark", seed=SEED, observers=[seen])
    strategy.fit(clients, rounds)
    labels = torch.tensor(np.array(parts[0].labels), dtype=torch.int64)
    return seen.gradients, labels, [row["accuracy"] for row in strategy.rows]


def read(gradients: Tensor, labels: Tensor, known: int) -> float:
    """Return the share of other images whose label is read, with `known` images of each class."""
    directions = F.normalize(gradients, dim=1)
    chosen = torch.cat([(labels == c).nonzero()[:known, 0] for c in range(CLASSES)])
    means = torch.stack([directions[chosen[labels[chosen] == c]].mean(0) for c in range(CLASSES)])
    guesses = (directions @ F.normalize(means, dim=1).mT).argmax(1)
    others = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, chosen, False)
    return float((guesses == labels)[others].double().mean())


def measure(rounds: int) -> dict[str, Any]:
    """Train, and read the labels of each round's images from its gradients."""
    by_round, labels, accuracy = train(rounds)
    rows, drawn = {}, 0
    for number, kept in by_round.items():
        indices = np.concatenate(
            [batch_indices(len(labels), BATCH, SEED, 0, drawn + i) for i in range(len(kept))]
        )
        drawn += len(kept)
        own = labels[torch.from_numpy(indices)]
        rows[number] = {str(n): read(torch.cat(kept), own, n) for n in KNOWN}
        rows[number]["accuracy"] = accuracy[number - 1]
    return {"labels_read": rows, "settings": {"clients": CLIENTS, "batch": BATCH, "seed": SEED}}


def print_table(figures: dict[str, Any]) -> None:
    names = {**{str(n): f"{n} known a class" for n in KNOWN}, "accuracy": "model's accuracy"}
    rows = [
        [f"round {number}", *(f"{100 * row[name]:.1f} %" for name in names)]
        for number, row in figures["labels_read"].items()
    ]
    show("Labels read from returned gradients (chance: 10 %)", ("", *names.values()), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round: is it alive?")
    options = parser.parse_args()
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    figures = measure(1 if options.quick else options.rounds)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
