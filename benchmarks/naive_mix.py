"""Images that Naive Mix mixes within a batch, read from single messages and from solved batches.

One client of `NaiveMixSL` trains on a tenth of the shipped part of Fashion-MNIST, with the model of
`image_labels`. The messages of the last steps are read with the head as it is then.
"""

from __future__ import annotations

import argparse
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.image_labels import CLASSES, Seen
from benchmarks.measure import show, write
from flwr_splitmix import UShapeClient
from flwr_splitmix.attacks.base import Attack, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.linear_decoder import LinearDecoder
from flwr_splitmix.attacks.images.solve_batch import SolveBatch
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.hiding import NaiveMix
from flwr_splitmix.mixers import NoMixing
from flwr_splitmix.segments import split_vision_parts
from flwr_splitmix.strategies import NaiveMixSL

SETTINGS = ((2, 0.5), (15, 0.5), (16, 0.5), (16, 0.3), (16, 0.7), (32, 0.5))
"""Batch sizes, and lam."""

CLIENTS, READ = 10, 64
"""The client's images are a tenth; about as many as the second are read, of the last steps."""

ATTACKS: tuple[type[Attack], ...] = (Linear, LinearDecoder, SolveBatch)


class MixingHead(nn.Module):
    """A head whose outputs (b, T, d) are mixed as a client of Naive Mix mixes them."""

    def __init__(self, head: nn.Module, lam: float) -> None:
        super().__init__()
        self.head, self.lam = head, lam

    def forward(self, images: Tensor) -> Tensor:
        """Return the messages of a batch."""
        hidden: Tensor = self.head(images, torch.ones(len(images), 1, dtype=torch.int64))
        return self.lam * hidden + (1 - self.lam) * hidden.roll(-1, 0)


def measure(batch: int, lam: float, rounds: int, seed: int) -> dict[str, float]:
    """Train, and return the mean squared error of each attack's images, and of the mean image."""
    images = load_images("fashion-mnist-small")
    parts = split_vision_parts(patch_size=8, depth=3, embed_dim=64, num_heads=4, seed=seed)
    data, _ = client_split(images, 0, CLIENTS)
    client = UShapeClient(
        deepcopy(parts.head), deepcopy(parts.tail), data, batch_size=batch, hiding=NaiveMix(lam)
    )
    observer = Seen()
    strategy = NaiveMixSL(deepcopy(parts.trunk), seed=seed, observers=[observer], min_nodes=1)
    strategy.fit([client], rounds)
    steps = observer.steps[-max(1, READ // batch) :]
    rows = [batch_indices(len(data), batch, seed, 0, step.drawn[0]) for step in steps]
    truth = [Pictures.of(data, indices).images for indices in rows]
    lower = MixingHead(deepcopy(client.head).eval(), lam)
    knowledge = Knowledge(
        method="NaiveMixSL",
        options={"lam": lam},
        mixer=NoMixing(),
        image_shape=images.train.shape,
        num_classes=CLASSES,
        geometry=parts.head.geometry,
        k=1,
        batch_size=batch,
        mean=images.train.mean,
        std=images.train.std,
        fresh_lower=lambda seed: lower,
        lowers=lower,
        mixes_batch=True,
    )
    releases = [Release(s.server_round, s.number, 0, s.messages[0][0]) for s in steps]
    view = View("server", releases, knowledge)
    public = Pictures.of(images.test)
    errors: dict[str, float] = {}
    for kind in ATTACKS:
        attack = kind()
        attack.fit(view, public, Budget("smoke"), seed=seed)
        guess = attack.run(view)
        errors[kind.name] = float(
            np.mean(
                [
                    float((value - truth[place][row]).square().mean())
                    for value, (place, row) in zip(guess.values, guess.where, strict=True)
                ]
            )
        )
    mean = public.images.mean(0)
    return {**errors, "mean image": float((torch.cat(truth) - mean).square().mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one round of one setting")
    options = parser.parse_args()
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    rounds = 1 if options.quick else options.rounds
    rows: list[dict[str, Any]] = []
    for batch, lam in SETTINGS[2:3] if options.quick else SETTINGS:
        rows.append({"batch": batch, "lam": lam, **measure(batch, lam, rounds, options.seed)})
        settings = {"rounds": rounds, "seed": options.seed}
        write(options.out, {"errors": rows, "settings": settings})
    names = [*(kind.name for kind in ATTACKS), "mean image"]
    show(
        "Mean squared error of images per pixel",
        ("batch", "lam", *names),
        [[str(r["batch"]), str(r["lam"]), *(f"{r[name]:.2g}" for name in names)] for r in rows],
    )


if __name__ == "__main__":
    main()
