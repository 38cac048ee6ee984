"""Victims: a real run of a row's strategy, recorded, and what each adversary has of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.apps.vision.cutting import split_for
from flwr_splitmix.apps.vision.trial import needs_labels, trial_strategy
from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.defences import AdversarialLower, BlurredLower
from flwr_splitmix.attacks.images.decoder import ConvDecoder
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.release import Adversary, Origin, Release
from flwr_splitmix.attacks.simulation import ShuffleWatch, passes
from flwr_splitmix.attacks.steps import Step, StepReader
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.device import pick_device
from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments.data import ResidentImages
from flwr_splitmix.experiments.privacy.images import MatrixImages
from flwr_splitmix.experiments.privacy.rows import Row
from flwr_splitmix.experiments.privacy.sizes import Size
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.schedule import WarmupCosine, adamw
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation

_MODEL = "vit_tiny_patch16_224"
_NOISE = {"sigma_s", "sigma_y", "clip", "clip_norm", "smashed_noise", "label_noise", "clamp_labels"}
_BLUR = 4
"""How many times lower the resolution becomes: of 32 pixels 8 are left; the paper leaves 16."""


class _Told(Observer):
    """Keeps a run's accuracy and bytes."""

    def __init__(self) -> None:
        self.top1: float | None = None
        self.uplink = 0
        self.rounds = 0

    def on_round(self, event: RoundDone) -> None:
        if event.evaluation is not None:
            self.top1 = event.evaluation.accuracy
        self.uplink += event.uplink_bytes
        self.rounds += 1


@dataclass(frozen=True)
class Victim:
    """A trained system with what its server received, and the truth, which only scores may see.

    Parameters
    ----------
    row, size, seed
        Which it is.
    knowledge
        Of the server: others have less, see `view`.
    steps
        Recorded steps: of training, then of victims that were held out.
    truth
        For each step by client the positions of its images in `images.trained`, then
        `images.held_out`; and where frozen edges put their patches.
    trained_steps
        How many of the steps are of training.
    top1, uplink_bytes
        Accuracy on the test images, and bytes that all clients sent in an epoch.
    epochs
        The stage of training that is attacked.
    """

    row: Row
    size: Size
    seed: int
    images: MatrixImages
    knowledge: Knowledge
    steps: Sequence[Step]
    truth: Sequence[tuple[Mapping[int, Tensor], Mapping[int, Tensor]]]
    trained_steps: int
    top1: float
    uplink_bytes: float
    epochs: int

    def view(self, adversary: Adversary) -> View:
        """Return all that an adversary has."""
        releases = [r for step in self.steps for r in self._reader(adversary).releases(step)]
        return View(adversary, releases, self._known(adversary))

    def origins(self, adversary: Adversary) -> list[Origin]:
        """Return where the rows of the view's releases come from: for the score only."""
        reader = self._reader(adversary)
        return [
            origin
            for step, (batches, orders) in zip(self.steps, self.truth, strict=True)
            for origin in reader.origins(step, batches, orders)
        ]

    def trained_releases(self, adversary: Adversary) -> int:
        """Return how many of the view's releases are of training; they are the first."""
        reader = self._reader(adversary)
        return sum(len(reader.releases(step)) for step in self.steps[: self.trained_steps])

    def _reader(self, adversary: Adversary) -> StepReader:
        return StepReader(self.knowledge.mixer, self.knowledge.num_classes, adversary)

    def _known(self, adversary: Adversary) -> Knowledge:
        """Take away what the adversary has not: the upper segment, lower ones not averaged."""
        if adversary in ("server", "upper only", "sum only"):
            return self.knowledge
        lowers = self.knowledge.lowers if self.knowledge.averaged else None
        return replace(self.knowledge, upper=None, lowers=lowers)


def options_of(row: Row) -> dict[str, Any]:
    """Return the options of a row's strategy, those about noise in one."""
    options: dict[str, Any] = {k: v for k, v in row.options.items() if k not in _NOISE}
    if noise := {k: v for k, v in row.options.items() if k in _NOISE}:
        options["noise"] = GaussianNoise.from_plain(noise)
    return options


def make_segments(row: Row, size: Size, images: MatrixImages, seed: int) -> SplitModel:
    """Build the row's model from a seed and cut it."""
    return split_for(
        trial_strategy(row.method, options_of(row)),
        _MODEL,
        num_classes=images.num_classes,
        channels=images.trained.shape[0],
        image_size=size.image_size,
        patch_size=size.patch,
        depth=size.depth + row.frozen_edge,
        seed=seed,
    )


def defended(row: Row, lower: nn.Module, images: MatrixImages) -> nn.Module:
    """Return a lower segment with the row's defence."""
    if row.defence == "blur":
        return BlurredLower(lower, images.trained.shape[1] // _BLUR)
    if row.defence == "adversarial":
        geometry: Any = lower.geometry
        opponent = ConvDecoder(
            geometry.width, geometry.patches, geometry.grid, images.trained.shape
        )
        return AdversarialLower(lower, opponent)
    return lower


def make_victim(row: Row, size: Size, images: MatrixImages, *, seed: int, device: str) -> Victim:
    """Train a row's system and release the images of victims that were held out."""
    segments = make_segments(row, size, images, seed)
    told, recorder = _Told(), Recorder(max_steps=size.recorded * (size.samples // size.batch))
    lower = defended(row, segments.lower, images)
    strategy = _strategy(row, size, images, segments.upper, [told, recorder], seed, device)
    test = ResidentImages(images.test, pick_device(device))
    clients = [
        SplitClient(
            copy.deepcopy(lower),
            ResidentImages(part, pick_device(device)),
            batch_size=size.batch,
            benchmark_data=test,
            optimizer=adamw(1e-3, 0.05),
            schedule=WarmupCosine(size.epochs / 10, 1e-3, 1e-2),
            device=device,
            shares=strategy.mixer.shares,
            repeatable_secrets=True,
        )
        for part in images.clients
    ]
    evaluate_fn = None
    if strategy.aggregator.averages:
        strategy.evaluation = "none"
        evaluate_fn = central_evaluation(strategy.upper, copy.deepcopy(lower), test)
    with ExitStack() as stack:
        watches = [stack.enter_context(ShuffleWatch(client.segment)) for client in clients]
        strategy.fit(clients, size.epochs, evaluate_fn=evaluate_fn)
    trained = [step for step in recorder.trace.steps() if isinstance(step, Step)]
    truth = [_truth(step, size, seed, watches) for step in trained]
    knowledge = _knowledge(row, size, images, strategy, [c.segment for c in clients])
    held_out = passes(
        knowledge,
        images.held_out.images,
        images.held_out.labels,
        np.random.default_rng(seed),
        lowers=knowledge.lowers,
        batch_size=size.batch,
        gradients=True,
        server_round=size.epochs,
    )
    behind = len(images.trained)
    own = [
        (step, ({c: rows + behind for c, rows in batches.items()}, orders))
        for step, batches, orders in held_out
    ]
    assert told.top1 is not None
    return Victim(
        row, size, seed, images, knowledge,
        [*trained, *(step for step, _ in own)], [*truth, *(each for _, each in own)], len(trained),
        told.top1, told.uplink / told.rounds, size.epochs,
    )  # fmt: skip


def _strategy(
    row: Row,
    size: Size,
    images: MatrixImages,
    upper: nn.Module,
    observers: Sequence[Observer],
    seed: int,
    device: str,
) -> SplitStrategy:
    options = options_of(row)
    if needs_labels(row.method):
        options["labels"] = [torch.tensor(part.labels) for part in images.clients]
    return STRATEGIES[row.method](
        upper,
        optimizer=adamw(1e-3, 0.05),
        schedule=WarmupCosine(size.epochs / 10, 1e-3, 1e-2),
        server_update="sum",
        device=device,
        min_nodes=size.clients,
        evaluation="benchmark",
        evaluate_every=size.epochs,
        seed=seed,
        observers=observers,
        **options,
    )


def _truth(
    step: Step, size: Size, seed: int, watches: Sequence[ShuffleWatch]
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Return which images a recorded step's batches were, as the clients drew them."""
    batches, orders = {}, {}
    for client, drawn in step.drawn.items():
        own = Batches(_Nothing(size.samples), size.batch, drawn=drawn)
        own.next_batch(seed, client)
        batches[client] = torch.from_numpy(own.indices) + client * size.samples
        if watches[client].orders:
            orders[client] = watches[client].orders[drawn]
    return batches, orders


class _Nothing(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """As many examples as a client has, of which only the order is asked."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(0), torch.zeros((), dtype=torch.int64)


def _knowledge(
    row: Row, size: Size, images: MatrixImages, strategy: SplitStrategy, segments: list[nn.Module]
) -> Knowledge:
    averages = strategy.aggregator.averages
    own = [
        segment.lower if isinstance(segment, AdversarialLower) else segment for segment in segments
    ]
    own = [copy.deepcopy(segment).cpu().eval().requires_grad_(False) for segment in own]
    common = averages or row.frozen_edge
    lowers: Lowers = own[0] if common else dict(enumerate(own))
    return Knowledge(
        method=row.method,
        options=dict(row.options),
        mixer=strategy.mixer,
        image_shape=images.trained.shape,
        num_classes=images.num_classes,
        geometry=strategy.upper.module.geometry,
        k=int(getattr(strategy.mixer, "k", 1)),
        batch_size=size.batch,
        mean=images.mean,
        std=images.std,
        fresh_lower=partial(_fresh, row, size, images),
        lowers=lowers,
        averaged=averages,
        upper=copy.deepcopy(strategy.upper.module).cpu().eval(),
    )


def _fresh(row: Row, size: Size, images: MatrixImages, seed: int) -> nn.Module:
    lower = make_segments(row, size, images, seed).lower
    return defended(row, lower, images) if row.defence == "blur" else lower
