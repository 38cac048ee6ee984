"""What upper segment and trunk have in common: dtype, device, overflow and state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.optimizers import adamw
from flwr_splitmix.server.segments.base import TrainedSegment
from flwr_splitmix.server.segments.trunk import TrainedTrunk
from flwr_splitmix.server.segments.upper import TrainedUpper
from flwr_splitmix.testing.agreement import check_same_tensors

KINDS = [(TrainedUpper, {"num_classes": 3}, "upper"), (TrainedTrunk, {}, "trunk")]


def segment_of(kind: Any, options: dict[str, Any], module: nn.Module) -> TrainedSegment:
    segment: TrainedSegment = kind(module, optimizer=adamw(0.1), device="cpu", **options)
    return segment


def learn(segment: TrainedSegment, scale: float = 1.0) -> None:
    segment.optimizer.zero_grad()
    (scale * segment.module(torch.ones(2, 4, dtype=segment.input_dtype)).sum()).backward()
    segment.optimizer.step(0.5, 3)


@pytest.mark.parametrize(("kind", "options", "name"), KINDS)
def test_a_restored_segment_goes_on_as_the_first_would(
    kind: Any, options: dict[str, Any], name: str
) -> None:
    model = nn.Linear(4, 3)
    first = segment_of(kind, options, copy.deepcopy(model))
    learn(first)
    tensors, meta = first.state()
    assert all(key.startswith((f"{name}.", f"{name}-optimizer.")) for key in tensors)
    second = segment_of(kind, options, model)
    second.restore({**{k: t.clone() for k, t in tensors.items()}, "lower.weight": model.bias}, meta)
    learn(first)
    learn(second)
    check_same_tensors("both", first.state()[0], second.state()[0])


@pytest.mark.parametrize(("kind", "options", "name"), KINDS)
def test_gradients_are_finite_only_if_their_squares_are(
    kind: Any, options: dict[str, Any], name: str
) -> None:
    segment = segment_of(kind, options, nn.Linear(4, 3))
    assert segment.gradients_finite() is None
    assert segment.own_gradients() == []
    for scale, fine in ((1.0, True), (1e30, False), (float("nan"), False)):
        learn(segment, 1.0)
        for gradient in segment.own_gradients():
            gradient.mul_(scale)
        assert bool(segment.gradients_finite()) is fine


def test_the_input_has_the_dtype_of_the_parameters_that_are_numbers() -> None:
    double = nn.Linear(4, 3).double()
    assert TrainedTrunk(double, device="cpu").input_dtype == torch.float64
    assert TrainedTrunk(nn.Identity(), device="cpu").input_dtype == torch.float32


def test_a_placed_module_stays_where_it_is() -> None:
    module = nn.Linear(4, 3, device="meta")
    segment = TrainedTrunk(module, device="placed", precision="float32")
    assert segment.module is module
    assert segment.device == torch.device("meta")
