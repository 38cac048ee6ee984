"""Shuffles are permutations of the batch, uniform, and as wide as they say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flwr_splitmix.seeding import seeded_secrets
from flwr_splitmix.segments import log10_orders_with_target, log10_search_space
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle, draw_order, patches_kept

pytestmark = pytest.mark.usefixtures("repeatable")

CHI_SQUARE_999 = {15: 37.7, 23: 49.7}
"""99.9 % points of the chi-square distribution, by degrees of freedom."""


def numbered(batch: int, n_patches: int) -> Tensor:
    """Patches (batch, n_patches, 1), each with its number in the batch."""
    return torch.arange(batch * n_patches).view(batch, n_patches, 1).float()


def own(shuffled: Tensor) -> Tensor:
    """Count, for each image, the patches that were its own."""
    batch, n_patches, _ = shuffled.shape
    return (shuffled[..., 0] // n_patches == torch.arange(batch).unsqueeze(1)).sum(dim=1)


@pytest.mark.parametrize("kappa", [0.01, 0.4, 0.75, 1.0])
def test_a_shuffle_loses_and_adds_no_patch_and_keeps_patches_whole(kappa: float) -> None:
    patches = torch.randn(5, 16, 3)
    shuffled = PatchShuffle(kappa)(patches)
    assert shuffled.shape == patches.shape
    before, after = (sorted(map(tuple, p.flatten(0, 1).tolist())) for p in (patches, shuffled))
    assert before == after


@pytest.mark.parametrize(("kappa", "count"), [(0.01, 0), (0.4, 6), (0.75, 12), (1.0, 16)])
def test_each_image_keeps_what_kappa_says_and_gets_strangers_for_the_rest(
    kappa: float, count: int
) -> None:
    assert patches_kept(16, kappa) == count
    counts = torch.stack([own(PatchShuffle(kappa)(numbered(50, 16))) for _ in range(20)])
    assert counts.min() >= count
    # Of the pooled patches dealt back to it, one in 50 is an image's own.
    expected = count + (16 - count) / 50
    assert counts.double().mean() == pytest.approx(expected, abs=0.1)


def test_floor_is_not_fooled_by_binary_fractions() -> None:
    assert patches_kept(100, 0.29) == 29
    assert patches_kept(196, 0.4) == 78


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_every_place_is_equally_likely(kappa: float) -> None:
    """Patch 0 of image 0 goes to each of the 4 x 4 places that kappa allows it."""
    draws = 4000
    places = torch.zeros(16)
    for _ in range(draws):
        order = draw_order(4, 4, patches_kept(4, kappa)).flatten()
        places[int((order == 0).nonzero())] += 1
    kept_share = patches_kept(4, kappa) / 4
    share = torch.full((4, 4), (1 - kept_share) / 16)
    share[0] += kept_share / 4
    possible = share.flatten() > 0
    assert not places[~possible].any()
    expected = draws * share.flatten()[possible]
    statistic = float(((places[possible] - expected) ** 2 / expected).sum())
    assert statistic < CHI_SQUARE_999[15]


def test_every_order_of_an_image_is_equally_likely() -> None:
    draws = 24 * 200
    orders = torch.cat([draw_order(100, 4, 4) - 4 * torch.arange(100)[:, None] for _ in range(48)])
    counts = torch.bincount(orders @ torch.tensor([64, 16, 4, 1]))
    counts = counts[counts > 0]
    assert len(orders) == draws
    assert len(counts) == math.factorial(4)
    assert float(((counts - 200.0) ** 2 / 200).sum()) < CHI_SQUARE_999[23]


def test_images_are_shuffled_independently() -> None:
    order = draw_order(2, 196, 196)
    assert not torch.equal(order[0], order[1] - 196)


@pytest.mark.parametrize("training", [True, False])
def test_kappa_1_and_evaluation_leave_every_image_its_patches(training: bool) -> None:
    shuffle = PatchShuffle(1.0 if training else 0.25).train(training)
    shuffled = shuffle(numbered(6, 16))
    assert own(shuffled).tolist() == [16] * 6
    assert not torch.equal(shuffled, numbered(6, 16))


def test_secrets_differ_from_call_to_call_and_ignore_the_default_generator() -> None:
    with seeded_secrets(active=False):
        draws = []
        for _ in range(2):
            torch.manual_seed(0)
            draws.append(draw_order(2, 64, 20))
    assert not torch.equal(*draws)


@pytest.mark.parametrize("kappa", [0.0, -0.1, 1.1, math.nan])
def test_a_kappa_out_of_range_is_refused(kappa: float) -> None:
    with pytest.raises(ValueError, match=rf"kappa is {kappa}; it must be greater than 0 and at mo"):
        PatchShuffle(kappa)


def test_gradients_return_to_where_the_patches_came_from() -> None:
    patches = numbered(3, 4).requires_grad_()
    shuffled = PatchShuffle(0.5)(patches)
    (gradient,) = torch.autograd.grad((shuffled * shuffled.detach()).sum(), patches)
    assert torch.equal(gradient, numbered(3, 4))


def test_search_spaces_are_those_of_the_paper() -> None:
    """Equations 7 and 8 for N = 196, kappa = 0.4, B = 50 (Patch Shuffling)."""
    assert log10_search_space(196) == pytest.approx(365.7, abs=0.05)
    assert log10_search_space(196, 0.4, 50) == pytest.approx(28239.7, abs=0.05)
    assert log10_orders_with_target(196, 0.4, 50) == pytest.approx(27624.3, abs=0.06)


def test_search_spaces_of_few_patches_can_be_counted() -> None:
    # N = 4, K = 2, B = 3: (4 choose 2) 2! = 12 for each image, 6! for the pool.
    assert log10_search_space(4, 0.5, 3) == pytest.approx(math.log10(12**3 * 720))
    assert log10_orders_with_target(4, 0.5, 3) == pytest.approx(math.log10(12**2 * 24))
    assert log10_search_space(5) == pytest.approx(math.log10(120))
