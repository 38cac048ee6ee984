"""A trial finds buffers through which examples change the outputs of later batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from flwr_splitmix.segments.across_batch import mixes_examples


class Remembering(nn.Module):
    """Subtracts a running mean of earlier batches; if `lazy`, the first call makes it."""

    def __init__(self, *, lazy: bool = False) -> None:
        super().__init__()
        if not lazy:
            self.register_buffer("centre", torch.zeros(4))

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


class Growing(nn.Module):
    """Appends each batch's mean to what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen: Tensor
        self.seen = torch.cat([self.seen, inputs.mean(1)])
        return inputs


@pytest.mark.parametrize(
    ("module", "buffer"),
    [
        (Remembering(), "centre"),
        (Remembering(lazy=True), "centre"),
        (nn.Sequential(nn.Linear(4, 4), Remembering()), "1.centre"),
        (First(), "first"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "running_mean"),
    ],
    ids=["mean", "lazy", "within", "first", "instance norm"],
)
def test_a_buffer_that_examples_change_is_named(module: nn.Module, buffer: str) -> None:
    """A call's outputs do not show it, as each call of the trial finds the buffers as they were."""
    for inputs in (torch.randn(3, 4, 4), torch.zeros(3, 4, 4)):
        expected = f"the buffer {buffer!r} that examples change"
        assert mixes_examples(module, inputs) == expected


@pytest.mark.parametrize(
    "module",
    [Counting(), spectral_norm(nn.Linear(4, 4)), nn.InstanceNorm1d(4)],
    ids=["counter", "spectral norm", "instance norm"],
)
def test_a_buffer_that_examples_do_not_change_is_none(
    module: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    assert mixes_examples(module, torch.randn(3, 4, 4)) == ""
    assert not caplog.records


def test_buffers_that_differ_from_call_to_call_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert mixes_examples(Growing(), torch.randn(3, 4, 4)) is None
    assert "its buffers differ from call to call" in caplog.text
