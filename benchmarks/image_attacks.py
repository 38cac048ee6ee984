"""Attacks on smashed data of images, with scores beside those of an earlier measurement.

    python -m benchmarks.image_attacks --out benchmarks/results/image_attacks.json [--quick]

Fashion-MNIST at 32 x 32, patches of 4, a ViT-Tiny cut at its embedding (64 tokens of 192), groups
of two. Attackers learn from 4,000 public training images; the victims are 1,000 test images, which
no model and no attacker has seen. The embedding has its initial weights: it is linear with any.
Set OMP_NUM_THREADS=1 for times on one thread; the benchmark then takes half an hour of processor
time. Cells that the file has for the same settings are not measured again, so the benchmark can be
interrupted and resumed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.measure import show, write
from flwr_splitmix import split_vision_model
from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.attribute import Attribute
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.decoder_transformer import DecoderTransformer
from flwr_splitmix.attacks.images.embedding.patches import to_patches
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.reorder import Reorder
from flwr_splitmix.attacks.images.separate import Separate
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Simulated
from flwr_splitmix.data import load_images
from flwr_splitmix.mixers import Mixer, Mixup, NoMixing, PatchCutMix, RandomCutout, Shuffled
from flwr_splitmix.segments.vision.split_model import LowerSegment

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "fashion_mnist"
GRID = (8, 8)
BATCH = 8
"""Images of a client in a step: a batch shares its masks, and 1,000 victims should have many."""

Positions = Literal["lower", "upper"]


@dataclass(frozen=True)
class Cell:
    """An attack on a method by an adversary, with the earlier score, if any."""

    method: str
    mixer: Callable[[], Mixer]
    adversary: Adversary
    attack: type[Attack]
    earlier: float | None = None
    positions: Positions = "lower"
    lowers: int = 1
    setting: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The cell's name in the table."""
        more = f", {self.lowers} lower segments" if self.lowers > 1 else ""
        votes = "".join(f", {key}={value}" for key, value in self.setting)
        return f"{self.method} / {self.adversary} / {self.attack.name}{more}{votes}"


def shuffled_cutmix() -> Mixer:
    return Shuffled(PatchCutMix(2))


def shuffled_psl() -> Mixer:
    return Shuffled(NoMixing())


ALONE = (("votes", False),)
CELLS = (
    Cell("PSL", NoMixing, "server", Linear, 1e-13),
    Cell("PSL shuffled, positions below", shuffled_psl, "upper only", Reorder, 1.0),
    Cell("Patch CutMix", PatchCutMix, "upper only", Attribute, 1.0, lowers=2),
    Cell("PSL", NoMixing, "server", Decoder, 0.0126),
    Cell("Mixup", Mixup, "upper only", Decoder, 0.0398),
    Cell("Patch CutMix", PatchCutMix, "upper only", Decoder, 0.0461),
    Cell("Patch CutMix", PatchCutMix, "sum only", Decoder, 0.0289),
    Cell("Patch CutMix", PatchCutMix, "server", Decoder),
    Cell("PSL shuffled", shuffled_psl, "upper only", Decoder, 0.0624, "upper"),
    Cell("Cutout", RandomCutout, "server", Decoder, 0.0232),
    Cell("Shuffled CutMix", shuffled_cutmix, "upper only", Decoder, 0.0707, "upper"),
    Cell("PSL", NoMixing, "server", DecoderTransformer, 0.0003),
    Cell("Patch CutMix", PatchCutMix, "sum only", DecoderTransformer, 0.0213),
    Cell("PSL shuffled", shuffled_psl, "upper only", DecoderTransformer, 0.0317, "upper"),
    Cell("Shuffled CutMix", shuffled_cutmix, "upper only", DecoderTransformer, 0.0566, "upper"),
    Cell("Mixup", Mixup, "upper only", Separate, 0.0146),
    Cell("Patch CutMix", PatchCutMix, "upper only", Separate, 0.0289),
    Cell("Patch CutMix", PatchCutMix, "upper only", Attribute, 0.758, setting=ALONE),
)


@dataclass(frozen=True)
class Bench:
    """Public images, victims, and the attacks' budget."""

    public: Pictures
    victims: Pictures
    budget: Budget

    def run(self, cell: Cell, seed: int) -> dict[str, float]:
        """Attack once; return scores and seconds."""
        knowledge = known(cell)
        rng = np.random.default_rng(seed)
        arguments = (self.victims.images, self.victims.labels, rng)
        releases = knowledge.simulate(*arguments, adversary=cell.adversary)
        view = View(cell.adversary, releases, knowledge)
        began, used = time.perf_counter(), time.process_time()
        attack = cell.attack(**dict(cell.setting))
        attack.fit(view, self.public, self.budget, seed=seed)
        guess = attack.run(view)
        seconds = {
            "seconds": round(time.perf_counter() - began, 1),
            "processor_seconds": round(time.process_time() - used, 1),
        }
        measure = {"images": image_scores, "owners": owner_scores, "order": order_scores}
        return {**measure[attack.goal](guess, releases, self.victims.images), **seconds}


def known(cell: Cell) -> Knowledge:
    """Return the adversary's knowledge."""

    def fresh(seed: int) -> LowerSegment:
        model = split_vision_model("vit_tiny_patch16_224", positions=cell.positions, seed=seed)
        return model.lower

    first = fresh(0)
    several = {client: fresh(client) for client in range(cell.lowers)}
    mixer = cell.mixer()
    return Knowledge(
        method=cell.method,
        options={},
        mixer=mixer,
        image_shape=(1, 32, 32),
        num_classes=10,
        geometry=first.geometry,
        k=1 if cell.method in ("PSL", "Cutout") or "PSL" in cell.method else 2,
        batch_size=BATCH,
        mean=(0.2860,),
        std=(0.3530,),
        fresh_lower=fresh,
        lowers=several if cell.lowers > 1 else first,
    )


def image_scores(guess: Guess, releases: Sequence[Simulated], truth: Tensor) -> dict[str, float]:
    """Return the mean squared error of images, and of patches that were sent.

    A single guess about a mixture is compared with each of its images; several are matched to them
    by the best assignment.
    """
    rows: dict[tuple[int, int], list[Tensor]] = {}
    for value, where in zip(guess.values, guess.where, strict=True):
        rows.setdefault(where, []).append(value)
    errors, sent_errors = [], []
    for (place, row), values in rows.items():
        origin = releases[place].origin
        assert origin is not None
        images = truth[origin.sources[row]]
        painted = torch.stack(values)
        apart = (painted[:, None] - images[None]).square().flatten(2).mean(2)
        if len(values) == 1:
            errors.append(float(apart.mean()))
            continue
        first, second = linear_sum_assignment(apart.numpy())
        errors.append(float(apart[first, second].mean()))
        if origin.owners is not None:
            patches = (to_patches(painted[first], GRID) - to_patches(images[second], GRID)).square()
            members = torch.tensor(origin.members)[second]
            is_owned = origin.owners[row] == members[:, None]
            sent_errors.append(float(patches.mean(2)[is_owned].mean()))
    scores = {"mse": float(np.mean(errors))}
    return {**scores, "mse_sent_patches": float(np.mean(sent_errors))} if sent_errors else scores


def owner_scores(guess: Guess, releases: Sequence[Simulated], truth: Tensor) -> dict[str, float]:
    """Return the fraction of patches attributed to the right one of two images.

    The better numbering of the two counts. Patches where both images have ink are also scored
    alone, as blank patches of two images are equal.
    """
    right, inked, chance = [], [], []
    rng = np.random.default_rng(0)
    for value, (place, row) in zip(guess.values, guess.where, strict=True):
        origin = releases[place].origin
        assert origin is not None
        assert origin.owners is not None
        second = (origin.owners[row] == origin.members[1]).long()
        hit = (value != value.min()).long() == second
        hit = hit if hit.float().mean() >= 0.5 else ~hit
        ink = (to_patches(truth[origin.sources[row]], GRID) > 0).any(2).all(0)
        right.append(float(hit.float().mean()))
        if ink.any():
            inked.append(float(hit[ink].float().mean()))
        guessed = float(np.mean(rng.integers(2, size=len(second)) == second.numpy()))
        chance.append(max(guessed, 1 - guessed))
    return {
        "accuracy": float(np.mean(right)),
        "accuracy_where_both_have_ink": float(np.mean(inked)),
        "chance": float(np.mean(chance)),
    }


def order_scores(guess: Guess, releases: Sequence[Simulated], truth: Tensor) -> dict[str, float]:
    """Return the fraction of tokens that are assigned their true place."""
    right = []
    for value, (place, row) in zip(guess.values, guess.where, strict=True):
        origin = releases[place].origin
        assert origin is not None
        assert origin.order is not None
        right.append(float((value == origin.order[row]).double().mean()))
    return {"accuracy": float(np.mean(right))}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Fashion-MNIST")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", default="", help="only those whose names hold this text")
    parser.add_argument("--quick", action="store_true", help="few images and steps: is it alive?")
    options = parser.parse_args(arguments)
    full = options.data.exists() and not options.quick
    images = load_images(str(options.data) if full else "fashion-mnist-small")
    public = Pictures.of(images.train, np.arange(200 if options.quick else 4000))
    victims = Pictures.of(images.test, np.arange(32 if options.quick else 1000))
    bench = Bench(public, victims, Budget(scale="smoke" if options.quick else "cpu"))
    mean = public.images.mean(0, keepdim=True)
    figures: dict[str, Any] = {
        "floors": {"mean public image": float((mean - victims.images).square().mean())},
        "cells": {},
        "settings": {
            "command": f"python -m benchmarks.image_attacks --out {options.out.name}",
            "data": "Fashion-MNIST, complete" if full else images.name,
            "public": len(public),
            "victims": len(victims),
            "batch": BATCH,
            "k": 2,
            "alpha": 6.0,
            "seed": options.seed,
            "threads": torch.get_num_threads(),
        },
    }
    if options.out.exists():
        before = json.loads(options.out.read_text())
        if before["settings"] == figures["settings"]:
            figures["cells"] = before["cells"]
    for cell in CELLS:
        if options.cells in cell.name and cell.name not in figures["cells"]:
            scores = bench.run(cell, options.seed)
            cells = {**figures["cells"], cell.name: {**scores, "earlier": cell.earlier}}
            figures["cells"] = {c.name: cells[c.name] for c in CELLS if c.name in cells}
            print(cell.name, scores, flush=True)
            write(options.out, figures)
    rows = [
        [
            name,
            f"{row.get('mse', row.get('accuracy')):.4g}",
            "" if row["earlier"] is None else f"{row['earlier']:.4g}",
            f"{row['processor_seconds']:.0f}",
        ]
        for name, row in figures["cells"].items()
    ]
    show("Images: MSE, or part that is right", ("cell", "now", "earlier", "s"), rows)
    print(f"mean public image: {figures['floors']['mean public image']:.4f}")


if __name__ == "__main__":
    main()
