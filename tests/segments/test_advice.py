"""Costs of cuts and the time of a step, against values counted by hand and by `measure`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flwr_splitmix.optimizers import adamw
from flwr_splitmix.segments.advice import (
    BITS,
    FLOPS,
    SECONDS,
    Setting,
    measure_loopback,
    predict,
    prefix_sums,
    quantity,
    rest,
    setting_here,
)
from flwr_splitmix.segments.costs import StageCosts, measure, measure_stages
from flwr_splitmix.segments.vision.cut import open_vision_model, split_vision_model
from flwr_splitmix.segments.vision.split_model import Request

SLOW = Setting(uplink=8e6, downlink=80e6, rtt=0.05, client_flops=1e6, server_flops=1e9)


def request(name: str, **changed: object) -> Request:
    values: dict[str, object] = {
        "cut_at": None, "num_classes": 10, "channels": 1, "image_size": 32, "patch_size": 8,
        "depth": 3, "positions": "lower", "cell": 1,
    }  # fmt: skip
    return Request(name, **{**values, **changed})  # type: ignore[arg-type]


def test_a_step_takes_what_its_parts_take() -> None:
    seconds = predict(
        SLOW, StageCosts(training_macs=1000), StageCosts(training_macs=2_000_000),
        batch=10, mixtures=5, uplink_bytes=1e6, downlink_bytes=1e6, exchanges=2,
    )  # fmt: skip
    # 20,000 operations, 2e8 operations, 1 MB at 1 MB/s, 1 MB at 10 MB/s, two round trips.
    assert seconds == pytest.approx(0.02 + 0.2 + 1.0 + 0.1 + 0.1)


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("20mbit", BITS, 20e6),
        ("1.5 Gbit", BITS, 1.5e9),
        ("40ms", SECONDS, 0.04),
        ("0s", SECONDS, 0.0),
        ("2e3gflops", FLOPS, 2e12),
    ],
)
def test_a_quantity_has_a_unit(text: str, units: dict[str, float], value: float) -> None:
    assert quantity(text, units) == pytest.approx(value)


@pytest.mark.parametrize("text", ["20", "mbit", "20mbyte", "-1mbit", "1.2.3mbit"])
def test_what_is_no_quantity_is_named_with_the_units(text: str) -> None:
    with pytest.raises(ValueError, match="bit, kbit, mbit, gbit"):
        quantity(text, BITS)


def test_nothing_is_no_bandwidth() -> None:
    with pytest.raises(ValueError, match="'0mbit' is not above 0"):
        quantity("0mbit", BITS)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "pit_ti_224", "resnet18", "lenet5"])
def test_stages_together_cost_what_the_segment_of_each_cut_costs(name: str) -> None:
    model = open_vision_model(request(name, image_size=64))
    images = torch.zeros(2, 1, 64, 64)
    below = prefix_sums(measure_stages([module for _, module in model.stages], images))
    for at in model.cuts.values():
        lower, upper = model.split(at)
        costs = measure(lower, images, adamw(), averages=False)
        assert below[at].parameters == costs.parameters
        assert below[at].parameter_bytes == costs.parameter_bytes
        assert below[at].training_macs == pytest.approx(costs.training_macs, rel=1e-3)
        assert below[at].activation_bytes_per_sample * 2 == pytest.approx(
            costs.activation_bytes, rel=0.05
        )
        server = rest(below[-1], below[at])
        assert server.parameters == sum(p.numel() for p in upper.parameters())


def test_every_cut_that_is_listed_is_one() -> None:
    model = open_vision_model(request("resnet18"))
    for cut_at in model.cuts:
        lower, _ = split_vision_model("resnet18", cut_at=cut_at, cell=1)
        assert sum(p.numel() for p in lower.parameters()) > 0
    with pytest.raises(ValueError, match=f"available: {', '.join(model.cuts)}"):
        split_vision_model("resnet18", cut_at="layer9")


def test_a_cut_before_an_activation_in_place_leaves_the_others_as_they_are() -> None:
    model = open_vision_model(request("vgg11"))
    relu = model.stages[1][1]
    assert isinstance(relu, nn.ReLU)
    lower, upper = model.split(1)
    smashed = lower(torch.ones(2, 1, 32, 32))
    before = smashed.detach().clone()
    upper(smashed)
    assert torch.equal(smashed, before)
    assert relu.inplace


def test_memory_is_weights_gradients_moments_and_activations() -> None:
    costs = StageCosts(
        parameters=10, trainable=10, parameter_bytes=40, activation_bytes_per_sample=7
    )
    assert costs.memory(3) == 40 + 3 * 40 + 21
    frozen = StageCosts(
        parameters=10, trainable=0, parameter_bytes=40, activation_bytes_per_sample=7
    )
    assert frozen.memory(3) == 40 + 21


def test_what_is_given_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting_here(1e9, uplink=1.0, downlink=2.0, rtt=3.0) == Setting(1.0, 2.0, 3.0, 1e9, 1e9)
    speed, rtt = measure_loopback()
    assert speed > 1e6
    assert 0 < rtt < 1
