"""What is computed in float64 is computed beside Apple's GPUs, which have none, and is equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.hiding.mixguard.calibration import Calibration, Calibrator
from flwr_splitmix.hiding.mixguard.leak import measured_leak
from flwr_splitmix.hiding.mixguard.one_message import one_message
from flwr_splitmix.hiding.mixguard.residual import ResidualKernel
from flwr_splitmix.hiding.snd.denoiser import Denoiser, Denoising
from flwr_splitmix.links.frames.wire import narrow
from flwr_splitmix.seeding import seeded_secrets
from tests.apple_gpu import AppleGpu, OnGpu, on_gpu

Place = Callable[[Tensor], Tensor]


def inputs(place: Place) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return three messages, hidden states (2, 4, 8) and a mask, placed on a device."""
    torch.manual_seed(0)
    messages = [place(torch.randn(2, 4, 8)) for _ in range(3)]
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    return messages, place(torch.randn(2, 4, 8)), place(mask)


def module(whole: Any, place: Place) -> Any:
    """Place a module's weights on the device."""
    for part in whole.modules():
        for name, weight in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(place(weight.data)))
    return whole


def leak(place: Place) -> Any:
    messages, hidden, _ = inputs(place)
    return measured_leak(messages, hidden)


def error(place: Place) -> Any:
    _, hidden, mask = inputs(place)
    return Calibration(module(Calibrator(8), place)).error(hidden, hidden + 1, mask)


def one(place: Place) -> Any:
    messages, _, _ = inputs(place)
    with seeded_secrets():
        return one_message(torch.stack(messages))


def residual(place: Place) -> Any:
    messages, hidden, mask = inputs(place)
    kernel = ResidualKernel()
    kernel.learn(messages, [2 * m for m in messages], hidden, 2 * hidden, mask)
    return kernel.weights(messages, hidden, mask)


def denoised(place: Place) -> Any:
    _, hidden, mask = inputs(place)
    denoiser = module(Denoiser(8, 8, 1, causal=True), place)
    denoising = Denoising(denoiser, learning_rate=1e-3)
    denoising.optimizer = Mock()  # the stand-in's gradients are on no device
    return denoising.step(hidden, hidden, hidden, hidden + 1, mask)


def narrowed(place: Place) -> Any:
    return narrow(inputs(place)[1], "float16")


@pytest.mark.parametrize("compute", [leak, error, one, residual, denoised, narrowed])
def test_float64_is_computed_where_it_is(compute: Callable[[Place], Any]) -> None:
    expected = compute(lambda tensor: tensor)
    with AppleGpu():
        actual = compute(on_gpu)
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (expected, actual)), strict=True)
    for reference, value in pairs:
        assert torch.equal(torch.as_tensor(reference), torch.as_tensor(value).as_subclass(Tensor))


def test_the_stand_in_refuses_what_apples_gpus_refuse() -> None:
    with AppleGpu():
        tensor = on_gpu(torch.ones(2))
        assert tensor.device.type == "mps"
        with pytest.raises(TypeError, match="float64"):
            tensor.double()
        with pytest.raises(RuntimeError, match="same device"):
            tensor + torch.ones(2)
        assert isinstance(tensor + 1, OnGpu)
        assert not isinstance(tensor.cpu(), OnGpu)
        assert isinstance(torch.ones(2, device=tensor.device), OnGpu)
