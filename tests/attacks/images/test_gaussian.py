"""A Gaussian of images gives the mean of what was not seen, given what was."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks.images.painting.gaussian import MAX_PIXELS, Gaussian, by_class
from flwr_splitmix.attacks.images.painting.painter import Painter


def images(n: int = 4_000, seed: int = 0) -> torch.Tensor:
    """Draw (n, 3, 2): the second patch is the first one's half, and the third knows nothing."""
    drawn = torch.Generator().manual_seed(seed)
    first, third = torch.rand(n, 2, 2, generator=drawn).unbind(1)
    return torch.stack([first, first / 2, third], dim=1)


def test_what_was_not_seen_follows_from_what_was() -> None:
    painted = Painter(Gaussian.fit(images()), [])(
        images(8, 1), torch.tensor([[True, False, False]] * 8)
    )
    truth = images(8, 1).double()
    assert torch.equal(painted[:, 0], truth[:, 0])
    assert torch.allclose(painted[:, 1], truth[:, 1], atol=0.02)
    assert torch.allclose(painted[:, 2], torch.full((8, 2), 0.5, dtype=torch.double), atol=0.02)


def test_every_row_has_its_own_mask() -> None:
    """Nothing seen gives the mean, and all seen the image itself."""
    fitted, truth = Gaussian.fit(images()), images(3, 1).double()
    visible = torch.tensor([[False] * 3, [True] * 3, [False, True, True]])
    painted = Painter(fitted, [])(truth, visible)
    assert torch.allclose(painted[0], fitted.mean)
    assert torch.equal(painted[1], truth[1])
    assert torch.allclose(painted[2, 0], truth[2, 0], atol=0.05)


def test_a_class_without_images_has_the_gaussian_of_all() -> None:
    patches = torch.cat([images(50), images(50) + 1])
    everything, class_gaussians = by_class(patches, torch.tensor([0] * 50 + [1] * 50), 3)
    assert class_gaussians[1].mean.mean() - class_gaussians[0].mean.mean() == pytest.approx(1)
    assert class_gaussians[2] is everything


def test_images_beyond_the_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_PIXELS} are fitted"):
        Gaussian.fit(torch.zeros(2, 1, MAX_PIXELS + 1))
