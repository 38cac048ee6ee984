"""Labels of images in the U shape, read from what clients send and return.

Labels stay with the client, but an image shows its class, and the gradient of its loss points away
from it. Three ways are measured of reading one client's labels, round by round.

From messages: the server fits a classifier to what the head, with its first weights, makes of
public images (`labels-public`). Where clients mix the images of a batch, it is read as it is, and
solved first.

With labels known: the server knows the labels of a few of the client's images, and gives every
other image the label of the known ones whose mean gradient of the round has the most similar
direction.

By replay, with no label known: the server takes the client's steps along with it on a copy of its
tail (`labels-replay`).

Four clients, the shipped part of Fashion-MNIST, a ViT of three blocks with one each in head and
tail. `Noise` is no method of the package: it stands for a client that bounds each image's returned
gradient and adds noise to it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import show, write
from flwr_splitmix import UShapeClient
from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.batch_ring import BatchRing
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import regrouped
from flwr_splitmix.attacks.images.labels_public import LabelsPublic
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.attacks.tails import MAX_EXACT_MISFIT, TailReading, TailReplay, Tails
from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.events import Messages, RoundBegun, StepDone
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding, NaiveMix, NoPeek, SentBatch
from flwr_splitmix.mixers import NoMixing
from flwr_splitmix.observers import Observer
from flwr_splitmix.segments import VisionParts, split_vision_parts
from flwr_splitmix.segments.vision.split_model import VisionHead
from flwr_splitmix.strategies import (
    DPSGDSL,
    DPForwardSL,
    NaiveMixSL,
    NoPeekSL,
    UShapeStrategy,
    USplitFL,
    USplitSL,
)

CLIENTS, BATCH, CLASSES = 4, 50, 10
KNOWN_LABELS = (1, 5)
"""Images of each class whose labels the server knows."""


class Noise(Hiding):
    """Bounds each image's returned gradient, and adds Gaussian noise to it.

    Parameters
    ----------
    multiplier
        Standard deviation of each number's noise, in units of the bound.
    bound
        Largest Euclidean norm of an image's gradient (T, d). All are longer here; what trunk and
        head learn by Adam does not depend on it.
    """

    def __init__(self, multiplier: float, bound: float = 1e-3) -> None:
        super().__init__()
        self.multiplier, self.bound = multiplier, bound

    def returned(self, gradients: Sequence[Tensor], sent: SentBatch) -> list[Tensor]:
        """Return bounded gradients with noise."""
        shorter = [self.bounded(gradient) for gradient in gradients]
        scale = self.multiplier * self.bound
        return [each + scale * torch.randn_like(each) for each in shorter]

    def bounded(self, gradients: Tensor) -> Tensor:
        """Return gradients (..., T, d), each at most as long as the bound."""
        norms: Tensor = torch.linalg.vector_norm(gradients, dim=(-2, -1), keepdim=True)
        return gradients * (self.bound / norms.clamp_min(self.bound))


class NoiseReplay(TailReplay):
    """A replay by a server that knows the bound."""

    def expected(self, gradients: Tensor) -> Tensor:
        """Return the bounded gradients."""
        return Noise(0.0).bounded(gradients)


@dataclass(frozen=True)
class Method:
    """How clients hide, and what is attacked.

    Parameters
    ----------
    strategy
        Its class.
    hiding
        Makes a client's hiding, given the number of rounds.
    replay, lam
        What the server knows of it, see `Tails`.
    learns
        See `UShapeClient`.
    links
        Whether the server knows which images are the same in different rounds, and takes together
        what their gradients say.
    """

    strategy: type[UShapeStrategy]
    hiding: Callable[[int], Hiding | None] = lambda rounds: None
    replay: type[TailReplay] = TailReplay
    lam: float = 1.0
    learns: Learns = "all"
    links: bool = False


def _noise(multiplier: float) -> Method:
    return Method(USplitSL, lambda rounds: Noise(multiplier), NoiseReplay, links=True)


METHODS: Mapping[str, Method] = {
    "USplitFL": Method(USplitFL),
    "USplitSL": Method(USplitSL),
    "NaiveMixSL": Method(NaiveMixSL, lambda rounds: NaiveMix(), lam=0.5),
    "NoPeekSL": Method(NoPeekSL, lambda rounds: NoPeek()),
    "DPForwardSL, epsilon 8": Method(
        DPForwardSL,
        lambda rounds: DPForward(epsilon=8.0, delta=1e-5, clip_norm=2.0, releases=rounds),
    ),
    "DPSGDSL, noise 1": Method(DPSGDSL, lambda rounds: DPSGD(noise_multiplier=1.0)),
    "noise 0.3 on what returns": _noise(0.3),
    "noise 1 on what returns": _noise(1.0),
    "noise 3 on what returns": _noise(3.0),
    "USplitSL, learns 'tail'": Method(USplitSL, learns="tail"),
}


@dataclass
class Seen(Observer):
    """What the server keeps of client 0."""

    steps: list[UShapeStep] = field(default_factory=list)
    averaged: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def on_begin(self, event: RoundBegun) -> None:
        """Keep the averaged weights that a round starts from."""
        if event.averaged and event.segment is not None:
            self.averaged[event.server_round] = event.segment()

    def on_step(self, event: StepDone) -> None:
        """Keep what the client sent, what its tail was given, and what it returned."""
        messages = event.uploads[0]
        assert isinstance(messages, Messages)
        outputs, returned = (
            {0: [tensor.detach().clone().float() for tensor in of.get(0, ())]}
            for of in (event.outputs, event.returned)
        )
        self.steps.append(
            UShapeStep(
                event.server_round,
                event.number,
                messages={0: [tensor.detach().clone().float() for tensor in messages.hidden]},
                masks={},
                outputs=outputs,
                returned=returned,
                gradients={},
                drawn={0: len(self.steps)},
            )
        )


def train(
    method: Method, rounds: int, seed: int, every_round: bool
) -> tuple[Seen, VisionParts, Tensor, list[Any]]:
    """Return what the server kept, the first parts, client 0's labels, and accuracies by round."""
    images = load_images("fashion-mnist-small")
    parts = split_vision_parts(patch_size=8, depth=3, embed_dim=64, num_heads=4, seed=seed)
    data = [client_split(images, index, CLIENTS)[0] for index in range(CLIENTS)]
    clients = [
        UShapeClient(
            deepcopy(parts.head),
            deepcopy(parts.tail),
            client_data,
            batch_size=BATCH,
            benchmark_data=images.test,
            hiding=method.hiding(rounds),
            learns=method.learns,
        )
        for client_data in data
    ]
    observer = Seen()
    strategy = method.strategy(
        deepcopy(parts.trunk),
        evaluation="benchmark",
        evaluate_every=1 if every_round else rounds,
        seed=seed,
        observers=[observer],
    )
    strategy.fit(clients, rounds)
    labels = torch.tensor(np.array(data[0].labels), dtype=torch.int64)
    return observer, parts, labels, [row["accuracy"] for row in strategy.rows]


def read(gradients: Tensor, labels: Tensor, num_known: int) -> float:
    """Return the share of other images whose label is read, with `num_known` of each class."""
    directions = F.normalize(gradients, dim=1)
    chosen = torch.cat([(labels == c).nonzero()[:num_known, 0] for c in range(CLASSES)])
    means = torch.stack([directions[chosen[labels[chosen] == c]].mean(0) for c in range(CLASSES)])
    guesses = (directions @ F.normalize(means, dim=1).mT).argmax(1)
    others = torch.ones(len(labels), dtype=torch.bool).index_fill_(0, chosen, False)
    return float((guesses == labels)[others].double().mean())


def read_from_messages(
    observer: Seen, head: VisionHead, labels: Tensor, seed: int, ring: BatchRing | None = None
) -> dict[int, float]:
    """Return the share of labels that `labels-public` reads from each round's messages.

    The server releases public images through the head alone, without what a method hides. If a ring
    is given, it first solves each batch.
    """
    images = load_images("fashion-mnist-small")
    knowledge = Knowledge(
        method="the U shape",
        options={},
        mixer=NoMixing(),
        image_shape=images.train.shape,
        num_classes=CLASSES,
        geometry=head.geometry,
        k=1,
        batch_size=BATCH,
        mean=images.train.mean,
        std=images.train.std,
        fresh_lower=lambda seed: head,
        first=head,
    )
    messages = [step.messages[0][0] for step in observer.steps]
    if ring is not None:
        messages = [ring.solve(message).to(message) for message in messages]
    releases = [
        Release(step.server_round, step.number, 0, message)
        for step, message in zip(observer.steps, messages, strict=True)
    ]
    view = View("server", releases, knowledge)
    attack = LabelsPublic()
    attack.fit(view, Pictures.of(images.test), Budget("cpu"), seed=seed)
    guess = attack.run(view)
    drawn = [step.drawn[0] for step in observer.steps]
    batches = [batch_indices(len(labels), BATCH, seed, 0, number) for number in drawn]
    right: dict[int, list[bool]] = {}
    for label, (number, row) in zip(guess.values.tolist(), guess.where, strict=True):
        hits = right.setdefault(releases[number].server_round, [])
        hits.append(label == int(labels[batches[number][row]]))
    return {number: sum(of) / len(of) for number, of in right.items()}


def measure(name: str, rounds: int, seed: int, every_round: bool) -> dict[str, dict[str, Any]]:
    """Train, and read the labels of each round's images: figures by round."""
    method = METHODS[name]
    observer, parts, labels, accuracy = train(method, rounds, seed, every_round)
    rows: dict[str, dict[str, Any]] = {
        str(n): {"accuracy": value} for n, value in enumerate(accuracy, start=1)
    }
    for number, share in read_from_messages(observer, parts.head, labels, seed).items():
        rows[str(number)]["messages"] = share
    if method.lam < 1:
        solved = read_from_messages(observer, parts.head, labels, seed, BatchRing(method.lam))
        for number, share in solved.items():
            rows[str(number)]["solved"] = share
    if method.learns == "tail":
        return rows
    lengths = {step.server_round: step.number + 1 for step in observer.steps}
    tails = Tails(
        parts.tail, lambda: observer.steps, lengths, observer.averaged.get, rounds, lam=method.lam
    )
    replay = method.replay(tails, 0)
    linked = torch.zeros(len(labels), CLASSES, dtype=torch.float64)
    readings: dict[int, list[tuple[Tensor, Tensor, TailReading]]] = {}
    for step in observer.steps:
        replay.meet(step)
        at = torch.from_numpy(batch_indices(len(labels), BATCH, seed, 0, step.drawn[0]))
        reading = replay.follow(step, linked[at] if method.links else None)
        if reading.scores is not None:
            linked[at] += reading.scores
        readings.setdefault(step.server_round, []).append((at, step.returned[0][0], reading))
    for number, batches in readings.items():
        at, gradients = (torch.cat(of) for of in list(zip(*batches, strict=True))[:2])
        guesses = torch.cat([reading.labels for *_, reading in batches])
        misfit = max(reading.misfit for *_, reading in batches)
        if misfit > MAX_EXACT_MISFIT and method.lam == 1:
            guesses = regrouped(gradients, guesses, CLASSES)
        row = rows[str(number)]
        row |= {f"{n} known": read(gradients.flatten(1), labels[at], n) for n in KNOWN_LABELS}
        row |= {"replay": float((guesses == labels[at]).double().mean()), "misfit": misfit}
    return rows


def print_table(figures: dict[str, Any]) -> None:
    names = {
        "messages": "from messages",
        "solved": "from solved batches",
        "replay": "by replay",
        **{f"{n} known": f"{n} known a class" for n in KNOWN_LABELS},
        "accuracy": "model's accuracy",
    }
    rows = []
    for method, by_seed in figures["labels_read"].items():
        for number in next(iter(by_seed.values())):
            values = [[of[number].get(name) for of in by_seed.values()] for name in names]
            rows.append([method, number, *(_mean(each) for each in values)])
    show(
        "Labels read from messages and returned gradients (chance: 10 %)",
        ("method", "round", *names.values()),
        rows,
    )


def _mean(values: Sequence[float | None]) -> str:
    present = [value for value in values if value is not None]
    return f"{100 * sum(present) / len(present):.1f} %" if present else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="one round of one method, one seed")
    options = parser.parse_args()
    logging.getLogger("flwr.splitmix").setLevel(logging.ERROR)
    if options.quick:
        options.rounds, options.seeds, options.methods = 1, 1, ["USplitFL"]
    figures: dict[str, Any] = {
        "labels_read": {},
        "settings": {"clients": CLIENTS, "batch": BATCH, "rounds": options.rounds},
    }
    for seed in range(options.seeds):
        for name in options.methods:
            rows = measure(name, options.rounds, seed, every_round=name == "USplitFL")
            figures["labels_read"].setdefault(name, {})[str(seed)] = rows
            write(options.out, figures)
    print_table(figures)


if __name__ == "__main__":
    main()
