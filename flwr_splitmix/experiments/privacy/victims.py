"""Victims: a real run of a row's strategy, recorded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.vision.cutting import split_for
from flwr_splitmix.apps.vision.trial import needs_labels, trial_strategy
from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.defences import AdversarialLower, BlurredLower
from flwr_splitmix.attacks.images.decoder import ConvDecoder
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.simulation import ShuffleWatch
from flwr_splitmix.attacks.vault import Vault
from flwr_splitmix.clients import SplitClient
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
        channels=images.shape[0],
        image_size=size.image_size,
        patch_size=size.patch,
        depth=size.depth + row.frozen_edge,
        seed=seed,
    )


def defended(row: Row, lower: nn.Module, images: MatrixImages) -> nn.Module:
    """Return a lower segment with the row's defence."""
    if row.defence == "blur":
        return BlurredLower(lower, images.shape[1] // _BLUR)
    if row.defence == "adversarial":
        geometry: Any = lower.geometry
        opponent = ConvDecoder(geometry.width, geometry.patches, geometry.grid, images.shape)
        return AdversarialLower(lower, opponent)
    return lower


def make_victim(row: Row, size: Size, images: MatrixImages, *, seed: int, device: str) -> Attacked:
    """Train a row's system, and record what its server receives.

    Its `summary` has "accuracy", "uplink_bytes" of an epoch, and "epochs", the stage of training
    that is attacked.
    """
    segments = make_segments(row, size, images, seed)
    per_epoch = size.samples // size.batch
    told, recorder = _Told(), Recorder(max_steps=size.recorded * per_epoch)
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
    assert told.top1 is not None
    return Attacked(
        _knowledge(row, size, images, strategy, [client.segment for client in clients]),
        strategy.aggregator.averages,
        recorder.trace,
        Vault(
            dict(enumerate(images.clients)), images.held_out, size.batch, seed,
            _orders(watches, size.epochs * per_epoch),
        ),
        {
            "accuracy": told.top1,
            "uplink_bytes": told.uplink / told.rounds,
            "epochs": size.epochs,
        },
    )  # fmt: skip


def _orders(watches: Sequence[ShuffleWatch], batches: int) -> dict[tuple[int, int], Tensor]:
    """Return where frozen edges put the patches of each client's batches.

    What they pass on besides, in an evaluation, is not shuffled and comes last.
    """
    return {
        (client, number): order
        for client, watch in enumerate(watches)
        for number, order in enumerate(watch.orders[:batches])
    }


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
        image_shape=images.shape,
        num_classes=images.num_classes,
        geometry=strategy.upper.module.geometry,
        k=int(getattr(strategy.mixer, "k", 1)),
        batch_size=size.batch,
        mean=images.mean,
        std=images.std,
        fresh_lower=partial(_fresh, row, size, images),
        lowers=lowers,
        upper=copy.deepcopy(strategy.upper.module).cpu().eval(),
    )


def _fresh(row: Row, size: Size, images: MatrixImages, seed: int) -> nn.Module:
    lower = make_segments(row, size, images, seed).lower
    return defended(row, lower, images) if row.defence == "blur" else lower
