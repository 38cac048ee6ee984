"""Defences beside the catalogue: what blur leaves, what a simulated attacker does."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.defences import (
    AdversarialLower,
    BlurredLower,
    blur,
    blurred,
    undefended,
)
from flwr_splitmix.segments import split_vision_model


class Lower(nn.Linear):
    """Images (b, 1, 4, 4) to one token of width 8."""

    geometry = "geometry"
    input_shape = (1, 4, 4)

    def __init__(self) -> None:
        super().__init__(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1)).unsqueeze(1)


class Opponent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.paint = nn.Linear(8, 16)

    def forward(self, smashed: Tensor) -> Tensor:
        painted: Tensor = self.paint(smashed.flatten(1))
        return painted.reshape(-1, 1, 4, 4)


def test_a_blur_to_one_pixel_leaves_the_mean() -> None:
    images = torch.rand(3, 1, 4, 4)
    expected = images.mean((2, 3), keepdim=True).expand_as(images)
    assert torch.allclose(blur(images, 1), expected, atol=1e-6)
    assert torch.equal(blur(images, 4), images)
    with pytest.raises(ValueError, match="cannot be blurred to 5 x 5"):
        blur(images, 5)


def test_a_blurred_lower_segment_sees_the_blur_alone() -> None:
    lower, images = Lower(), torch.rand(2, 1, 4, 4)
    defended = BlurredLower(lower, 2)
    assert torch.equal(defended(images), lower(blur(images, 2)))
    assert (defended.geometry, defended.input_shape) == (lower.geometry, lower.input_shape)


@pytest.mark.parametrize(("size", "side"), [(28, 7), (32, 8), (224, 16)])
def test_at_the_papers_size_a_blur_leaves_a_fourteenth(size: int, side: int) -> None:
    """Source: Patch Shuffling, section V-A."""
    model = split_vision_model(
        "vit_tiny_patch16_224", num_classes=2, image_size=size, patch_size=size // 4, depth=2
    )
    defended = blurred(model).lower
    assert isinstance(defended, BlurredLower)
    assert defended.side == side


def test_the_gradient_is_the_servers_less_the_opponents() -> None:
    """Source: Patch Shuffling, equation 9."""
    lower, opponent, images = Lower(), Opponent(), torch.rand(5, 1, 4, 4)
    defended = AdversarialLower(copy.deepcopy(lower), copy.deepcopy(opponent), weight=2.0)
    from_server = torch.randn(5, 1, 8)
    defended.train()(images).backward(from_server)

    smashed = lower(images)
    attack_loss = F.mse_loss(opponent(smashed), images)
    ((smashed * from_server).sum() - 2.0 * attack_loss).backward()
    for ours, expected in zip(defended.lower.parameters(), lower.parameters(), strict=True):
        assert ours.grad is not None
        assert expected.grad is not None
        assert torch.allclose(ours.grad, expected.grad, atol=1e-6)


def test_the_opponent_learns_by_itself_and_in_training_alone() -> None:
    defended = AdversarialLower(Lower(), Opponent(), lr=1e-2)
    images = torch.rand(32, 1, 4, 4)
    trainable = {name for name, p in defended.named_parameters() if p.requires_grad}
    assert trainable == {"lower.weight", "lower.bias"}  # what the client's optimizer gets

    def error() -> float:
        with torch.no_grad():
            return float(F.mse_loss(defended.opponent(defended.lower(images)), images))

    first = error()
    for _ in range(100):
        defended.train()(images)
    assert error() < 0.5 * first
    learned = copy.deepcopy(defended.opponent.state_dict())
    defended.eval()(images)
    with torch.no_grad():
        defended.train()(images)
    assert all(torch.equal(v, learned[k]) for k, v in defended.opponent.state_dict().items())
    assert undefended(defended) is defended.lower
