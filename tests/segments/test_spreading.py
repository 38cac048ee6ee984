"""The trial finds whether tokens depend on parts of an input that others depend on, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from flwr_splitmix import split_vision_model
from flwr_splitmix.segments.spreading import spreading_tokens
from flwr_splitmix.testing.toy import Toy

SMALL: dict[str, Any] = {"image_size": 16, "channels": 1, "num_classes": 7, "depth": 2, "seed": 0}


class Patches(nn.Sequential):
    """Images (b, 1, 16, 16) to tokens (b, N, d)."""

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return maps.flatten(2).mT


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vit_tiny_patch16_224", {"cut_at": "embedding"}, 0),
        ("vit_tiny_patch16_224", {"cut_at": "embedding", "positions": "upper"}, 0),
        ("vit_tiny_patch16_224", {"cut_at": "blocks.0"}, 17),  # with the class token
        ("vit_small_patch14_reg4_dinov2", {"cut_at": "embedding"}, 0),
        ("vit_small_patch14_reg4_dinov2", {"cut_at": "blocks.0"}, 21),
    ],
)
def test_a_patch_spreads_in_a_block_and_not_in_the_embedding(
    name: str, options: dict[str, Any], expected: int
) -> None:
    lower, _ = split_vision_model(name, patch_size=4, **SMALL, **options)
    assert spreading_tokens(lower, torch.rand(2, *lower.input_shape)) == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(1, 6, 4, stride=4)], 0),
        ([nn.Conv2d(1, 6, 4, stride=4), nn.ReLU(), nn.Dropout()], 0),
        ([spectral_norm(nn.Conv2d(1, 6, 4, stride=4))], 0),  # changes its buffers in training
        ([nn.Conv2d(1, 6, 4, stride=4), nn.BatchNorm2d(6)], 16),  # in training
        ([nn.Conv2d(1, 6, 4, stride=4), nn.InstanceNorm2d(6, track_running_stats=True)], 16),
        ([nn.Conv2d(1, 6, 3, stride=5)], 0),  # gaps between the windows
        ([nn.Conv2d(1, 6, 5, stride=4, padding=2)], 13),  # at least: few numbers are tried
        ([nn.Conv2d(1, 6, 4, stride=4), nn.GroupNorm(1, 6)], 16),  # over the whole image
        ([nn.Conv2d(1, 6, 4, stride=4), nn.Conv2d(6, 6, (1, 2), stride=(1, 2))], 0),
    ],
    ids=[
        "embedding",
        "dropout",
        "spectral norm",
        "batch norm",
        "instance norm",
        "gaps",
        "overlapping",
        "group norm",
        "joined",
    ],
)
def test_layers_are_judged_by_what_they_do(layers: list[nn.Module], expected: int) -> None:
    images = torch.rand(3, 1, 16, 16)
    assert spreading_tokens(Patches(*layers), images) == expected
    assert spreading_tokens(Patches(*layers).half(), images.half()) == expected


def test_no_weights_hide_a_block() -> None:
    """A server could send a closed block, and open it in the training."""
    lower, _ = split_vision_model(patch_size=4, cut_at="blocks.0", **SMALL)
    with torch.no_grad():
        for weight in lower.parameters():
            weight.zero_()
    before = {name: each.clone() for name, each in lower.state_dict().items()}
    generator = torch.random.get_rng_state()
    assert spreading_tokens(lower, torch.zeros(1, 1, 16, 16)) == 17
    assert all(torch.equal(each, before[name]) for name, each in lower.state_dict().items())
    assert torch.equal(generator, torch.random.get_rng_state())
    assert lower.training
    assert all(weight.requires_grad for weight in lower.parameters())


@pytest.mark.parametrize(("prefix", "expected"), [(0, 0), (2, 8)])
def test_inputs_need_not_be_images(prefix: int, expected: int) -> None:
    toy = Toy(prefix=prefix, batch_norm=False)
    assert spreading_tokens(toy.lower(), toy.data(0).inputs[:2]) == expected


class Detached(Patches):
    """Adds the mean of all tokens to each, without a derivative."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return tokens + tokens.detach().mean(1, keepdim=True)


def test_no_derivative_is_needed() -> None:
    images = torch.rand(2, 1, 16, 16)
    assert spreading_tokens(Detached(nn.Conv2d(1, 6, 4, stride=4)), images) == 16
    assert spreading_tokens(nn.Embedding(9, 3), torch.arange(8).view(2, 4)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixes", [False, True])
def test_of_tokens_of_a_text_it_is_told_in_any_dtype(dtype: torch.dtype, mixes: bool) -> None:
    """With a segment in 16 bits, integers stay such, as an embedding takes no floats."""
    layers: list[nn.Module] = [nn.Embedding(9, 3)]
    if mixes:
        layers.append(nn.TransformerEncoderLayer(3, 1, 4, batch_first=True))
    ids = torch.arange(8).view(2, 4)
    assert spreading_tokens(nn.Sequential(*layers).to(dtype), ids) == (4 if mixes else 0)


class InHalves(nn.Embedding):
    """Computes in bfloat16 only, by which a small part of other tokens is lost."""

    def forward(self, ids: Tensor) -> Tensor:
        tokens = super().forward(ids) @ torch.ones(3, 3, dtype=torch.bfloat16)
        return tokens + 1e-3 * tokens.mean(1, keepdim=True)


def test_of_a_segment_that_takes_no_float32_it_cannot_be_told() -> None:
    segment = InHalves(9, 3).bfloat16()
    assert segment(torch.arange(8).view(2, 4)).shape == (2, 4, 3)
    assert spreading_tokens(segment, torch.arange(8).view(2, 4)) is None


class InPlace(Patches):
    """Changes the inputs that it is given."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.sub_(0.5))


def test_a_segment_may_change_its_inputs() -> None:
    images = torch.rand(2, 1, 16, 16)
    before = images.clone()
    assert spreading_tokens(InPlace(nn.Conv2d(1, 6, 4, stride=4)), images) == 0
    assert torch.equal(images, before)


class Constant(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.ones(len(images), 16, 6)


def test_of_outputs_that_do_not_depend_on_inputs_it_cannot_be_told() -> None:
    assert spreading_tokens(Constant(), torch.rand(2, 1, 16, 16)) is None


class Gated(Patches):
    """Adds the mean of all tokens to each if its gate is 1, and takes no gate but 0 and 1."""

    def __init__(self, gate: float) -> None:
        super().__init__(nn.Conv2d(1, 6, 4, stride=4))
        self.gate = nn.Parameter(torch.tensor([gate]))

    def forward(self, images: Tensor) -> Tensor:
        if self.gate.item() not in (0, 1):
            raise ValueError("the gate must be 0 or 1")
        tokens = super().forward(images)
        return tokens + self.gate * tokens.mean(1, keepdim=True)


@pytest.mark.parametrize(("gate", "expected"), [(0.0, None), (1.0, 16)])
def test_weights_of_a_segment_that_takes_no_others_do_not_hide_it(
    gate: float, expected: int | None
) -> None:
    """A server could send the gate closed, and open it in the training."""
    assert spreading_tokens(Gated(gate), torch.rand(2, 1, 16, 16)) == expected


def test_many_tokens_cost_a_few_passes() -> None:
    """Derivatives of each token would take ten seconds here, and a gigabyte."""
    passes = 0

    class Counted(Patches):
        def forward(self, images: Tensor) -> Tensor:
            nonlocal passes
            passes += len(images)
            return super().forward(images)

    stem = Counted(nn.Conv2d(3, 8, 7, stride=4, padding=3))
    number = spreading_tokens(stem, torch.rand(1, 3, 112, 112))
    assert number is not None
    assert 2 <= number <= 784
    assert passes <= 2 * (48 + 8)
