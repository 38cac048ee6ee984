"""The parts that attacks on images are made of."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks.images.collecting.gathering import distances, unite
from flwr_splitmix.attacks.images.embedding.inverse import fit_inverse
from flwr_splitmix.attacks.images.embedding.patches import (
    grid_of,
    patch_size,
    to_images,
    to_patches,
)
from flwr_splitmix.attacks.images.embedding.subspaces import fit_subspace, nearest_subspace
from flwr_splitmix.attacks.images.placing.assignment import assign
from flwr_splitmix.attacks.images.placing.neighbours import adjacency, arrange, neighbour_loss


def test_patches_are_put_together_as_they_were_cut() -> None:
    images = torch.rand(2, 3, 8, 12)
    patches = to_patches(images, (4, 3))
    assert patches.shape == (2, 12, 3 * 2 * 4)
    # The second token is the patch to the right of the first.
    assert torch.equal(patches[:, 1], images[:, :, :2, 4:8].flatten(1))
    assert torch.equal(to_images(patches, (4, 3), (3, 8, 12)), images)


def test_patches_that_do_not_tile_an_image_are_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match="5 x 5 tokens does not divide images of 8 x 12"):
        patch_size((1, 8, 12), (5, 5))
    with pytest.raises(ValueError, match="12 patches form no square"):
        grid_of(12, None)


def test_the_inverse_of_an_embedding_is_exact_and_that_of_noise_is_the_mean() -> None:
    patches = torch.rand(60, 9, 4)
    embedding, positions = torch.randn(4, 20), torch.randn(9, 20)
    inverse = fit_inverse(patches @ embedding + positions, patches)
    others = torch.rand(5, 9, 4)
    assert torch.allclose(inverse(others @ embedding + positions).float(), others, atol=1e-5)
    noise = fit_inverse(torch.randn(2000, 9, 20), torch.rand(2000, 9, 4))
    assert float((noise(torch.randn(5, 9, 20)) - 0.5).abs().max()) < 0.1


def test_a_token_lies_in_the_subspace_of_the_segment_that_made_it() -> None:
    patches, truth = torch.rand(40, 9, 4), torch.randint(2, (40, 9))
    segment_tokens = [patches @ torch.randn(4, 20) + torch.randn(9, 20) for _ in range(2)]
    subspaces = [fit_subspace(tokens) for tokens in segment_tokens]
    assert [each.directions.shape for each in subspaces] == [(20, 4)] * 2
    mixture = torch.where(truth[..., None] == 0, segment_tokens[0], segment_tokens[1])
    owners, sure = nearest_subspace(mixture, subspaces)
    assert torch.equal(owners, truth)
    assert float(sure.min()) > 0.9


def test_assignment_gives_each_token_a_place_of_its_own() -> None:
    places = torch.stack([torch.randperm(7) for _ in range(3)])
    scores = torch.nn.functional.one_hot(places, 7) + 0.4 * torch.rand(3, 7, 7)
    assert torch.equal(assign(scores), places)


def test_slots_beside_and_below_each_other() -> None:
    beside, below = adjacency((2, 3))
    assert beside.nonzero().tolist() == [[0, 1], [1, 2], [3, 4], [4, 5]]
    assert below.nonzero().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_neighbours_alone_arrange_what_no_token_says_of_its_place() -> None:
    grid = (3, 4)
    slots = torch.stack([torch.randperm(12) for _ in range(5)])
    one_hot = torch.nn.functional.one_hot(slots, 12).float()
    right, below = (8 * one_hot @ beside @ one_hot.mT for beside in adjacency(grid))
    # One corner breaks the symmetry: a grid shifted by a column fits its neighbours as well.
    place = 4 * one_hot * (slots == 0)[..., None]
    arranged, sure = arrange((place, right, below), grid)
    assert torch.equal(arranged, slots)
    wrong = neighbour_loss((-place, -right, -below), slots, grid)
    assert neighbour_loss((place, right, below), slots, grid) < 0.5 * wrong
    assert sure.shape == slots.shape


def test_releases_taken_together_hold_the_union_and_a_fraction_of_the_noise() -> None:
    truth = torch.randn(3, 16, 8)
    masks = torch.rand(40, 3, 16) < 0.5
    noisy = (truth + torch.randn(40, 3, 16, 8)) * masks[..., None]
    united, union = unite(noisy, masks)
    assert float(union.min()) > 0
    # Of 40 releases about 20 hold a patch: the variance falls to about a twentieth.
    assert 0.03 < float((united - truth).square().mean()) < 0.08
    everything, _ = unite(
        truth[None] + torch.randn(64, 3, 16, 8), torch.ones(64, 3, 16, dtype=torch.bool)
    )
    assert float((everything - truth).square().mean()) == pytest.approx(1 / 64, rel=0.3)


def test_distances_are_those_of_the_patches_that_both_rows_hold() -> None:
    rows, masks = torch.randn(4, 9, 5), torch.rand(4, 9) < 0.7
    others, other_masks = torch.randn(3, 9, 5), torch.rand(3, 9) < 0.7
    actual = distances(rows * masks[..., None], masks, others * other_masks[..., None], other_masks)
    for i in range(4):
        for j in range(3):
            common = masks[i] & other_masks[j]
            expected = (rows[i, common] - others[j, common]).square().mean()
            if common.sum() < 4:  # too few to tell images apart
                expected = torch.tensor(torch.inf)
            assert float(actual[i, j]) == pytest.approx(float(expected), rel=1e-4)
    nothing = torch.zeros(4, 9, dtype=torch.bool)
    assert distances(rows, nothing, others, other_masks).isinf().all()
