"""Draws are a function of seed, purpose and place, the same on every machine."""

from __future__ import annotations

import numpy as np
import torch

from flwr_splitmix.seeding import derive_seed, frozen_generator, generator, torch_seed


def test_seeds_never_change() -> None:
    """Client and server derive them apart, and a resumed run derives them again."""
    assert derive_seed(7, "plan", 1, 2) == 7179133543773311991
    assert derive_seed(0, "upper") == 9141915847868611029


def test_every_place_has_a_seed_of_its_own() -> None:
    places = [
        (seed, purpose, *place)
        for seed in (0, 1, 12)
        for purpose in ("plan", "step")
        for place in ((), (1,), (2,), (1, 2), (12,), (2, 1), (1, 2, 0))
    ]
    seeds = {derive_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_repeat() -> None:
    assert generator(3, "plan", 1).random() == generator(3, "plan", 1).random()
    assert generator(3, "plan", 1).random() != generator(3, "plan", 2).random()


def test_frozen_generators_follow_numpys_frozen_stream() -> None:
    assert frozen_generator(2**32 + 5).randint(1000, size=3).tolist() == [867, 206, 701]
    assert (
        frozen_generator(5).permutation(6).tolist()
        == np.random.RandomState(5).permutation(6).tolist()
    )


def test_torch_is_seeded_inside_and_left_as_it_was() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with torch_seed(torch.device("cpu"), 9):
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with torch_seed(torch.device("cpu"), 9):
        assert torch.equal(torch.rand(2), first)
