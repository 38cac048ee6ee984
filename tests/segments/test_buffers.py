"""A trial finds buffers through which examples change the outputs of later batches."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from flwr_splitmix.segments.across_batch import mixes_examples


class Remembering(nn.Module):
    """Subtracts a running mean of earlier batches; if `lazy`, the first call makes it."""

    def __init__(self, *, lazy: bool = False, persistent: bool = True) -> None:
        super().__init__()
        if not lazy:
            self.register_buffer("centre", torch.zeros(4), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "centre"):
            self.register_buffer("centre", torch.zeros(4))
        centre = self.get_buffer("centre")
        outputs = inputs - centre
        centre.mul_(0.999).add_(0.001 * inputs.mean((0, 1)))
        return outputs


class First(nn.Module):
    """Keeps the first example, of which no output tells."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.full((4, 4), torch.nan))

    def forward(self, inputs: Tensor) -> Tensor:
        self.first: Tensor
        self.first = inputs[0]
        return 2 * inputs


class Counting(nn.Module):
    """Makes a counter of its calls in the first one, and scales by it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.full((2,), torch.nan))

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "calls"):
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        return inputs * self.get_buffer("calls").add_(1)


class Warming(nn.Module):
    """Keeps a buffer that follows a plain counter."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("alpha", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.get_buffer("alpha").fill_(min(1.0, self.calls / 1000))
        return inputs


class Shown(nn.Module):
    """Keeps its attention for plots."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("attention", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.attention: Tensor
        self.attention = inputs.softmax(-1)
        return 2 * inputs


class Stamped(nn.Module):
    """Keeps a number that nobody seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stamp", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.get_buffer("stamp").fill_(int.from_bytes(os.urandom(7), "big"))
        return inputs


@pytest.mark.parametrize(
    ("module", "buffer"),
    [
        (Remembering(), "centre"),
        (Remembering(lazy=True), "centre"),
        (nn.Sequential(nn.Linear(4, 4), Remembering()), "1.centre"),
        (Remembering(persistent=False), "centre"),
        (First(), "first"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "running_mean"),
    ],
    ids=["mean", "lazy", "within", "not persistent", "first", "instance norm"],
)
def test_a_buffer_that_examples_change_is_named(module: nn.Module, buffer: str) -> None:
    for inputs in (torch.randn(3, 4, 4), torch.zeros(3, 4, 4)):
        expected = f"the buffer {buffer!r} that examples change"
        assert mixes_examples(module, inputs) == expected


@pytest.mark.parametrize(
    "module",
    [Counting(), Warming(), Shown(), spectral_norm(nn.Linear(4, 4)), nn.InstanceNorm1d(4)],
    ids=["counter", "plain counter", "for plots", "spectral norm", "instance norm"],
)
def test_a_buffer_that_examples_do_not_change_is_none(
    module: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    assert mixes_examples(module, torch.randn(3, 4, 4)) == ""
    assert not caplog.records


def test_buffers_that_differ_from_call_to_call_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert mixes_examples(Stamped(), torch.randn(3, 4, 4)) is None
    assert "its buffers differ from call to call" in caplog.text
