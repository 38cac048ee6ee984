"""The replay of tails that cannot be followed exactly: it says so, and reads what it can."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix import UShapeClient
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import regrouped
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.tails import MAX_EXACT_MISFIT, TailReading, TailReplay, Tails
from flwr_splitmix.data import ImageDataset, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.events import StepDone
from flwr_splitmix.hiding import DPSGD, Hiding, NaiveMix, SentBatch
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.segments import split_vision_parts
from flwr_splitmix.strategies import DPSGDSL, NaiveMixSL, UShapeStrategy, USplitSL

BATCH, ROUNDS, STEPS = 20, 2, 6


@dataclass
class Kept(Observer):
    """What the server has of its only client."""

    steps: list[UShapeStep] = field(default_factory=list)

    def on_step(self, event: StepDone) -> None:
        outputs, returned = (
            {0: [tensor.detach().clone() for tensor in of[0]]}
            for of in (event.outputs, event.returned)
        )
        self.steps.append(
            UShapeStep(
                event.server_round,
                event.number,
                messages={},
                masks={},
                outputs=outputs,
                returned=returned,
                gradients={},
                drawn={0: len(self.steps)},
            )
        )


class Smoothing(UShapeClient):
    """A client with a loss of its own."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        logits = self.hiding.logits(hidden, sent)
        return F.cross_entropy(logits, sent.batch.labels, label_smoothing=0.2)


class Dropping(nn.Module):
    """A tail behind dropout."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.drop, self.tail = nn.Dropout(0.3), tail

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.tail(self.drop(hidden), mask)
        return logits


@pytest.fixture(scope="module")
def images() -> ImageDataset:
    return load_images("fashion-mnist-small").train.subset(np.arange(BATCH * STEPS))


def replayed(
    images: ImageDataset,
    *,
    strategy: type[UShapeStrategy] = USplitSL,
    client: type[UShapeClient] = UShapeClient,
    hiding: Hiding | None = None,
    drops: bool = False,
    lam: float = 1.0,
    leave_out: Sequence[int] = (),
) -> tuple[TailReplay, list[TailReading], list[Tensor], list[Tensor]]:
    """Train, and replay: the readings of all steps that are left, their gradients and labels."""
    head, trunk, last = split_vision_parts(patch_size=16, depth=3, embed_dim=32, num_heads=2)
    tail: nn.Module = Dropping(last) if drops else last
    observer = Kept()
    more: dict[str, Any] = {"schedule": constant}
    trained_client = client(
        deepcopy(head), deepcopy(tail), images, batch_size=BATCH, hiding=hiding, **more
    )
    strategy(trunk, observers=[observer], **more).fit([trained_client], ROUNDS)
    steps = [step for at, step in enumerate(observer.steps) if at not in leave_out]
    lengths = dict.fromkeys(range(1, ROUNDS + 1), STEPS)
    replay = TailReplay(
        Tails(tail, lambda: steps, lengths, lambda _: None, ROUNDS, lam=lam, **more), 0
    )
    readings, labels = [], []
    for step in steps:
        replay.meet(step)
        readings.append(replay.follow(step))
        rows = batch_indices(len(images), BATCH, 0, 0, step.drawn[0])
        labels.append(torch.tensor(images.labels[rows]))
    return replay, readings, [step.returned[0][0] for step in steps], labels


def right(readings: Sequence[TailReading], labels: Sequence[Tensor]) -> float:
    read_labels = torch.cat([reading.labels for reading in readings])
    return float((read_labels == torch.cat([*labels])).double().mean())


@pytest.mark.parametrize("lam", [1.0, 0.5, 0.8])
def test_a_tail_is_followed_exactly(images: ImageDataset, lam: float) -> None:
    mixing: dict[str, Any] = {"strategy": NaiveMixSL, "hiding": NaiveMix(lam), "lam": lam}
    replay, readings, _, labels = replayed(images, **(mixing if lam < 1 else {}))
    assert replay.known
    assert replay.missing is None
    assert right(readings, labels) == 1
    assert max(reading.misfit for reading in readings) < 1e-3
    assert min(float(reading.margins.min()) for reading in readings) > 0.01


def test_the_wrong_ratio_is_no_fit(images: ImageDataset) -> None:
    _, readings, *_ = replayed(images, strategy=NaiveMixSL, hiding=NaiveMix(0.7), lam=0.5)
    assert readings[0].misfit > MAX_EXACT_MISFIT


@pytest.mark.parametrize("fault", ["dropout", "loss"])
def test_another_tail_or_loss_is_noticed_and_most_labels_are_read(
    images: ImageDataset, fault: str
) -> None:
    options: dict[str, Any] = {"drops": True} if fault == "dropout" else {"client": Smoothing}
    _, readings, gradients, labels = replayed(images, **options)
    assert readings[0].misfit > MAX_EXACT_MISFIT
    read_labels = torch.cat([reading.labels for reading in readings])
    corrected = regrouped(torch.cat(gradients), read_labels, 10)
    assert float((corrected == torch.cat(labels)).double().mean()) > 0.9


def test_a_missing_step_is_noticed(images: ImageDataset) -> None:
    replay, readings, _, labels = replayed(images, leave_out=[3])
    assert replay.missing == (1, 4)
    assert max(reading.misfit for reading in readings[:3]) < 1e-3
    assert readings[3].misfit > MAX_EXACT_MISFIT
    assert right(readings[:3], labels[:3]) == 1


def test_weights_that_are_not_known_are_not_replayed(images: ImageDataset) -> None:
    replay, *_ = replayed(images, leave_out=[0])
    assert (replay.known, replay.missing) == (False, (1, 1))


def test_noise_in_the_tails_steps_hides_no_label(images: ImageDataset) -> None:
    _, readings, gradients, labels = replayed(images, strategy=DPSGDSL, hiding=DPSGD(1.0))
    assert readings[-1].misfit > MAX_EXACT_MISFIT
    read_labels = torch.cat([reading.labels for reading in readings])
    corrected = regrouped(torch.cat(gradients), read_labels, 10)
    read = float((corrected == torch.cat(labels)).double().mean())
    assert read > max(0.95, right(readings, labels) - 1e-9)


def test_directions_that_say_nothing_leave_labels_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100, 400, generator=generator)
    labels = torch.randint(10, (100,), generator=generator)
    means = torch.randn(10, 400, generator=generator)
    wrong = labels.clone()
    wrong[:20] = (labels[:20] + 1) % 10
    assert torch.equal(regrouped(means[labels] + 0.1 * rows, wrong, 10), labels)
    alike = regrouped(torch.ones(100, 400), labels, 10)
    assert torch.equal(alike, labels)
