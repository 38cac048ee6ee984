"""The place of a trunk on a machine with several GPUs, which here are numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.language.advice import open_run_model
from flwr_splitmix.apps.language.model import build_parts
from flwr_splitmix.apps.language.placing import MEMORY_FACTOR, USABLE_SHARE, trunk_devices
from flwr_splitmix.segments.language.placement import is_placed, place_trunk
from flwr_splitmix.server.segments.base import PLACED
from flwr_splitmix.server.segments.trunk import TrainedTrunk
from tests.apps.language_app import read

SIX: dict[str, Any] = {"model": "small", "small_layers": 6, "head_layers": 1, "tail_layers": 1}


def weight_bytes(**values: Any) -> int:
    trunk = open_run_model(read(**SIX, **values))[1].trunk
    assert trunk is not None
    return sum(weight.nbytes for weight in trunk.parameters())


def free(share_of_need: float, times: int = MEMORY_FACTOR) -> int:
    """Return the free memory of a GPU that can train so much of the trunk."""
    return int(share_of_need * times * weight_bytes() / USABLE_SHARE)


def test_a_trunk_that_the_first_gpu_can_train_stays_there() -> None:
    assert trunk_devices(read(**SIX), [free(1.01), free(1.01)]) is None


def test_a_trunk_that_is_too_large_for_the_first_is_spread_over_all() -> None:
    devices = trunk_devices(read(**SIX), [free(0.8), free(0.8)])
    assert isinstance(devices, dict)
    layers = [devices[f"stack.layers.{i}"] for i in range(4)]
    assert layers == sorted(layers)
    assert set(layers) == {0, 1}
    assert set(devices.values()) == {0, 1}


def test_adapters_take_less_than_all_weights() -> None:
    adapted = {**SIX, "lora_rank": 2, "lora_parts": "trunk"}
    gpus = [free(1.01, times=1), free(1.01, times=1)]
    assert trunk_devices(read(**adapted), gpus) is None
    with pytest.raises(ConfigError):
        trunk_devices(read(**SIX), gpus)


def test_gpus_that_are_too_small_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the trunk needs .* and the 2 GPUs have .*; use more"):
        trunk_devices(read(**SIX), [free(0.3), free(0.3)])


@pytest.mark.parametrize("gpus", [[], [1]])
def test_with_one_device_there_is_nothing_to_spread_over(gpus: list[int]) -> None:
    assert trunk_devices(read(**SIX), gpus) is None


def test_what_the_configuration_names_holds() -> None:
    small = [1, 1]
    assert trunk_devices(read(**SIX, device="cpu"), small) is None
    assert trunk_devices(read(**SIX, device="balanced"), small) == "balanced"


def test_a_spread_trunk_is_trained_where_it_is() -> None:
    """Both GPUs are the processor here."""
    devices = trunk_devices(read(**SIX), [free(0.8), free(0.8)])
    assert isinstance(devices, dict)
    built = build_parts(read(**SIX), ("trunk",))
    spread, whole = built.trunk, build_parts(read(**SIX), ("trunk",)).trunk
    assert spread is not None
    assert whole is not None
    place_trunk(spread, device_map=dict.fromkeys(devices, "cpu"))
    assert is_placed(spread)
    assert not is_placed(whole)
    hidden = torch.randn(2, 5, built.width, generator=torch.Generator().manual_seed(0))
    for trunk in (spread, whole):
        trunk(hidden).square().sum().backward()
    gradients = dict(whole.named_parameters())
    for name, weight in spread.named_parameters():
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradients[name].grad)  # type: ignore[arg-type]
    assert TrainedTrunk(spread, device=PLACED).module is spread
