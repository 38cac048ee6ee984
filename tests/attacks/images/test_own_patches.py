"""Patches that the batches of an image have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.collecting.own_patches import Pool, own_patches
from flwr_splitmix.attacks.images.embedding.patches import to_patches
from flwr_splitmix.attacks.images.unshuffle import Unshuffle, linked_rows
from tests.attacks.victims import small

OWN = torch.tensor([[0.1], [0.2], [0.3], [0.0], [0.0], [0.0]])
"""Six patches of one number, three of them blank."""


def pool(*others: Tensor, seed: int, keeps: int = 6) -> Pool:
    """Deal the image's patches and others' among rows; so many of the first stay in its row."""
    generator = torch.Generator().manual_seed(seed)
    moved = torch.cat([OWN[keeps:], *others])
    dealt = moved[torch.randperm(len(moved), generator=generator)]
    rows = torch.cat([OWN[:keeps], dealt]).view(-1, len(OWN), 1)
    return Pool(rows, 0)


def others(start: float) -> Tensor:
    """Return the patches of another image, half of them blank."""
    return torch.tensor([[start], [start + 0.01], [start + 0.02], [0.0], [0.0], [0.0]])


def multiset(patches: Tensor) -> list[float]:
    return sorted(round(value, 4) for value in patches.flatten().tolist())


def test_two_batches_with_different_companions_give_an_image_away() -> None:
    pools = [pool(others(0.5), seed=0, keeps=2), pool(others(0.7), seed=1, keeps=2)]
    assert multiset(own_patches(pools)) == multiset(OWN)


def test_small_errors_of_reading_do_not_matter() -> None:
    pools = [pool(others(0.5), seed=0, keeps=2), pool(others(0.7), seed=1, keeps=2)]
    noisy = [Pool(each.patches + 1e-5 * torch.randn(each.patches.shape), 0) for each in pools]
    patches = own_patches(noisy)
    assert patches.shape == OWN.shape
    assert float((patches.sort(0).values - OWN.sort(0).values).abs().max()) < 1e-3


def test_with_the_same_companion_every_time_rows_decide() -> None:
    dealt = [pool(others(0.5), seed=seed, keeps=5) for seed in range(6)]
    patches = own_patches([Pool(each.patches, 0, [1]) for each in dealt])
    assert multiset(patches) == multiset(OWN)
    other = own_patches([Pool(each.patches, 1, [0]) for each in dealt])
    assert multiset(other) == multiset(others(0.5))


def test_patches_that_are_never_read_alike_still_give_as_many() -> None:
    pools = [Pool(torch.rand(2, 6, 1) + number, 0) for number in range(2)]
    assert own_patches(pools).shape == OWN.shape


def test_a_real_run_gives_away_the_patches_of_its_images() -> None:
    system = train_victim(
        small("BatchShuffleSL", samples=32, rounds=4, steps=None, dataset="fashion-mnist-small")
    )
    case = system.case("server", trained=4 * 64, held_out=0, assume=["lower"])
    groups = linked_rows(case.view)
    assert [len(rows) for rows in groups] == [4] * 64
    attack = Unshuffle()
    attack.fit(case.view, system.public(100), Budget("smoke"))
    origins, images = case.truth.origins, case.truth.pictures.images
    shares = []
    for rows in groups[:16]:
        pools = [Pool(attack.patches_of(case.view.releases[place]), row) for place, row in rows]
        place, row = rows[0]
        truth = to_patches(images[origins[place].sources[row, :1]], (4, 4))[0].double()
        apart = torch.cdist(truth, own_patches(pools).double(), p=torch.inf).min(1).values
        shares.append(float((apart < 1e-2).double().mean()))
    assert sum(shares) / len(shares) == pytest.approx(1, abs=0.05)
