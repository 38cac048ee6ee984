"""Modules of somebody's own as upper segment: what they may do, and what is refused in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.segments.upper import ServerUpdate, TrainedUpper
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import sgd
from tests.server.segments.mixtures import LR, TOY, B, mixture


@pytest.mark.parametrize("update", ["sequential", "sum"])
def test_a_module_may_overwrite_its_input(update: ServerUpdate) -> None:
    mixed = mixture()
    before = mixed.smashed.clone()
    results = []
    for in_place in (False, True):
        module = nn.Sequential(nn.ReLU(inplace=in_place), TOY.upper())
        segment = TrainedUpper(
            module,
            num_classes=3,
            optimizer=sgd(LR),
            schedule=constant,
            server_update=update,
            device="cpu",
        )
        results.append(segment.learn(mixed, 0.0, 1, seed=0, rng=np.random.default_rng(2)))
    assert torch.equal(mixed.smashed, before)
    assert torch.equal(results[0].gradient, results[1].gradient)


def test_a_module_that_returns_no_tensor_is_refused_with_what_it_returns() -> None:
    class Described(nn.Linear):
        def forward(self, smashed: Tensor) -> Any:
            return {"logits": super().forward(smashed.flatten(1))}

    segment = TrainedUpper(Described(18, 3), num_classes=3, device="cpu", precision="float32")
    mixed = replace(mixture(), smashed=mixture().smashed.float())
    with pytest.raises(ValueError, match=r"returns a dict; expected logits \(12, 3\)"):
        segment.learn_part(mixed, B, seed=0, first=True)


class Attending(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1)

    def forward(self, smashed: Tensor) -> Any:
        return self.attention(smashed, smashed, smashed)[0]


@pytest.mark.parametrize(
    "upper",
    [
        nn.Sequential(nn.Flatten(1), nn.Linear(15, 3)),
        nn.LayerNorm(5),
        nn.Conv1d(4, 3, 1),
        Attending(5),
    ],
    ids=lambda upper: type(upper).__name__,
)
def test_a_module_for_other_smashed_data_is_told_their_shape(upper: nn.Module) -> None:
    segment = TrainedUpper(upper.double(), num_classes=3, device="cpu")
    message = r"upper segment does not take .* of shape \(12, 6, 3\), .* from one model, and .* \("
    with pytest.raises(ValueError, match=message):
        segment.learn_part(mixture(), B, seed=0, first=True)
    with pytest.raises(ValueError, match=message):
        segment.score(mixture().smashed, torch.zeros(12, dtype=torch.int64))


@pytest.mark.parametrize("contiguous", [False, True])
def test_maps_that_lie_otherwise_in_memory_are_not_taken_for_another_shape(
    contiguous: bool,
) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Linear(24, 3)])

        def forward(self, smashed: Tensor) -> Tensor:
            convolution, linear = self.layers
            maps = nn.Unflatten(2, (2, 3))(smashed.mT)
            maps = convolution(maps.contiguous() if contiguous else maps)
            logits: Tensor = linear(maps.view(-1, 24))
            return logits

    segment = TrainedUpper(Viewing().double(), num_classes=3, device="cpu")
    if contiguous:
        segment.learn_part(mixture(), B, seed=0, first=True)
        return
    message = (
        r"upper segment calls .view on a tensor .* call .reshape instead, or .contiguous\(\) on"
    )
    with pytest.raises(ValueError, match=message):
        segment.learn_part(mixture(), B, seed=0, first=True)


@pytest.mark.parametrize("cause", ["the disk is full", "out of memory: blocks of this size"])
def test_an_error_of_another_cause_stays_as_it_is(cause: str) -> None:
    class Broken(nn.Linear):
        def forward(self, smashed: Tensor) -> Tensor:
            raise RuntimeError(cause)

    segment = TrainedUpper(Broken(18, 3), num_classes=3, device="cpu")
    with pytest.raises(RuntimeError, match=rf"^{cause}$"):
        segment.learn_part(mixture(), B, seed=0, first=True)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_module_that_detaches_its_input_is_refused(frozen: bool) -> None:
    class Detached(nn.Linear):
        def forward(self, smashed: Tensor) -> Tensor:
            return super().forward(smashed.detach().flatten(1))

    module = Detached(18, 3, dtype=torch.float64).requires_grad_(not frozen)
    segment = TrainedUpper(module, num_classes=3, device="cpu")
    with pytest.raises(ValueError, match=r"no gradient .* smashed data; it must not detach them"):
        segment.learn_part(mixture(), B, seed=0, first=True)


def test_batch_normalisation_of_one_example_is_told_with_the_remedy() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(18, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    segment = TrainedUpper(module.double(), num_classes=3, device="cpu")
    mixed = mixture(1)
    one = replace(mixed, smashed=mixed.smashed[:1], targets=mixed.targets[:1])
    with pytest.raises(ValueError, match=r"in the upper segment needs .*: take batches of two or"):
        segment.learn(one, 0.0, 1, seed=0, rng=np.random.default_rng(2))


def test_a_module_that_returns_something_else_in_evaluation_is_refused_there() -> None:
    class Both(nn.Sequential):
        def forward(self, smashed: Tensor) -> Any:
            logits: Tensor = self[0](smashed)
            return logits if self.training else (logits, smashed)

    segment = TrainedUpper(Both(TOY.upper()), num_classes=3, device="cpu")
    with pytest.raises(ValueError, match=r"returns a tuple; expected logits \(12, 3\), one"):
        segment.score(mixture().smashed, torch.zeros(12, dtype=torch.int64))


def test_what_a_module_keeps_of_an_evaluation_serves_in_training() -> None:
    class Scaled(nn.Sequential):
        scale: Tensor | None = None

        def forward(self, smashed: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = torch.ones_like(smashed[:1])
            logits: Tensor = self[0](smashed * self.scale)
            return logits

    segment = TrainedUpper(Scaled(TOY.upper()), num_classes=3, device="cpu")
    mixed = mixture()
    segment.score(mixed.smashed, torch.zeros(12, dtype=torch.int64))
    assert segment.learn_part(mixed, B, seed=0, first=True).gradient.abs().sum() > 0


class Pieces(nn.Conv2d):
    """A lower segment without a geometry: patches of 8 x 8 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).flatten(2).mT


@pytest.mark.parametrize("sides", [(32, 28), (28, 32), (28, 32, 28)])
def test_a_client_with_smaller_images_does_not_end_the_run_for_those_that_fit(
    sides: tuple[int, ...],
) -> None:
    """The smallest shape must not decide where none is the most frequent."""
    clients = [
        SplitClient(
            Pieces(1, 8, 8, stride=8),
            [(torch.rand(1, side, side), number % 3) for number in range(6)],
            batch_size=3,
            device="cpu",
        )
        for side in sides
    ]
    upper = nn.Sequential(nn.Flatten(), nn.Linear(16 * 8, 3), nn.Dropout(), nn.BatchNorm1d(3))
    SFL(upper, num_classes=3, min_nodes=1, device="cpu").fit(clients, num_rounds=1)
    trained = [number for number, client in enumerate(clients) if client.batches.drawn]
    assert trained == [sides.index(32)]


def test_a_trial_of_a_shape_changes_nothing() -> None:
    upper = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 3))
    segment = TrainedUpper(upper, num_classes=3, device="cpu")
    before = {name: tensor.clone() for name, tensor in upper.state_dict().items()}
    generator = torch.get_rng_state()
    assert segment.takes(SmashedShape(batch=5, patches=4, width=3))
    assert not segment.takes(SmashedShape(batch=5, patches=4, width=4))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(upper.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_shape_is_tried_with_two_examples_as_some_modules_cannot_take_one() -> None:
    """With one, the shape of most clients would not be taken, and that of a single one win."""
    upper = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 3), nn.BatchNorm1d(3, track_running_stats=False)
    )
    segment = TrainedUpper(upper, num_classes=3, device="cpu")
    assert segment.takes(SmashedShape(batch=5, patches=4, width=3))
