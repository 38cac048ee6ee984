"""Which examples a recorded batch held, also after steps that a client missed, or nobody."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.vault import Vault, VaultError
from flwr_splitmix.clients import UShapeClient, exchange
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.mixers import (
    EmptyMixtureError,
    Mixed,
    NoMixing,
    PatchCutMix,
    SmashedShape,
    Upload,
)
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.toy_texts import TextToy
from tests.attacks.victims import small

IMAGES = load_images("fashion-mnist-small")
PARTS = {client: client_split(IMAGES, client, 60)[0] for client in range(3)}


class Failing(SplitClient):
    """Fails once, in the second step, before or after it draws the batch."""

    draws = False
    failed = False

    @exchange
    def step(self, *, number: int, **values: Any) -> dict[str, Any]:
        if number == 1 and not self.failed:
            self.failed = True
            if self.draws:
                self.batch(number)
            raise OSError("no more memory")
        return super().step(number=number, **values)


class Drawn(Failing):
    draws = True


class OnceEmpty(NoMixing):
    """Has nothing to mix in its second step."""

    merged = 0

    def merge(self, *arguments: Any, **options: Any) -> Mixed:
        self.merged += 1
        if self.merged == 2:
            raise EmptyMixtureError("nobody has a patch")
        return super().merge(*arguments, **options)


def recorded(kind: type[SplitClient], **options: Any) -> list[Step]:
    """Return the steps of three clients, of which the first is of a kind."""
    lower, upper = split_vision_model("lenet5", seed=0)
    recorder = Recorder()
    strategy = PSL(upper, steps_per_round=3, seed=5, observers=[recorder], evaluation="none")
    for name, value in options.items():
        setattr(strategy, name, value)
    clients = [
        (kind if client == 0 else SplitClient)(copy.deepcopy(lower), part, batch_size=8)
        for client, part in PARTS.items()
    ]
    strategy.fit(clients, 2)
    return [step for step in recorder.trace.steps() if isinstance(step, Step)]


@pytest.mark.parametrize("kind", [Failing, Drawn])
def test_a_client_that_failed_is_followed_when_it_is_back(kind: type[SplitClient]) -> None:
    steps = recorded(kind)
    assert [0 in step.uploads for step in steps] == [True, False, False, True, True, True]
    vault = Vault(PARTS, IMAGES.test, batch_size=8, seed=5)
    assert all(vault.drawn(step).keys() == step.uploads.keys() for step in steps)


def test_a_step_without_a_mixture_counts() -> None:
    steps = recorded(SplitClient, mixer=OnceEmpty())
    assert [(step.server_round, step.number) for step in steps] == [
        (1, 0), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    vault = Vault(PARTS, IMAGES.test, batch_size=8, seed=5)
    assert all(len(vault.drawn(step)) == 3 for step in steps)


class FailingTexts(UShapeClient):
    """Client 0 fails once, in the second step, before or after it draws the batch."""

    draws = False
    failed = False
    sent: ClassVar[dict[tuple[int, int, int], list[int]]] = {}

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        order, number = self.order, arguments["number"]
        if order.client == 0 and (method, number) == ("encode", 1) and not self.failed:
            self.failed = True
            if self.draws:
                super().run(method, arguments)
            raise OSError("no more memory")
        reply = super().run(method, arguments)
        self.sent[order.client, order.server_round, number] = self.batches.indices.tolist()
        return reply


class DrawnTexts(FailingTexts):
    draws = True
    sent: ClassVar[dict[tuple[int, int, int], list[int]]] = {}


@pytest.mark.parametrize("kind", [FailingTexts, DrawnTexts])
def test_a_client_of_the_u_shape_that_failed_is_followed_when_it_is_back(
    kind: type[FailingTexts], tmp_path: Path
) -> None:
    """Its recorded steps say which batches they are."""
    toy, recorder = TextToy(kind=kind), Recorder(directory=tmp_path / "trace")
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=4, seed=5, observers=[recorder])
    strategy.fit(toy.clients_for(strategy), 2)
    steps = [step for step in recorder.trace.steps() if isinstance(step, UShapeStep)]
    assert [0 in step.messages for step in steps] == [True, *[False] * 3, *[True] * 4]
    for step in steps:
        for client, number in step.drawn.items():
            rows = batch_indices(toy.examples, toy.batch, 5, client, number).tolist()
            assert kind.sent[client, step.server_round, step.number] == rows


def test_mixtures_of_a_third_party_have_no_truth() -> None:
    shape = SmashedShape(4, 16, 8, classes=10)
    plan = MixedElsewhere(PatchCutMix(2, min_patches=1)).plan([-1], shape, np.random.default_rng(0))
    mixture = Upload([torch.zeros(shape.size)], [torch.zeros(4, 10)])
    vault = Vault(PARTS, IMAGES.test, batch_size=4, seed=5)
    with pytest.raises(VaultError, match="without link-via"):
        vault.drawn(Step(1, 0, plan, {-1: mixture}))


@pytest.mark.parametrize("method", ["DPSL", "DPCutMixSL"])
def test_noisy_labels_tell_whether_the_images_are_those_of_the_run(method: str) -> None:
    system = train_victim(small(method, steps=6))
    steps = [step for step in system.trace.steps() if isinstance(step, Step)]
    pictures, _ = system.vault.placed(steps)
    assert len(pictures) == 48
    first, second = system.vault.data.values()
    other = replace(system.vault, data={0: second, 1: first})
    with pytest.raises(VaultError, match="noisy labels that are not those of its images"):
        other.placed(steps)


def test_noise_that_drowns_labels_is_no_reason_to_refuse() -> None:
    noise = GaussianNoise(sigma_s=0.5, sigma_y=8.0)
    system = train_victim(small("DPSL", steps=6, options={"noise": noise}))
    case = system.case("server", trained=96, held_out=0)
    assert len(case.truth.pictures) == 48
