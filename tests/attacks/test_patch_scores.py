"""Scores of owners and places: guesses without information are at their floor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Guess
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.intervals import Measure
from flwr_splitmix.attacks.scoring.patch_scores import attributed, attributed_blindly
from flwr_splitmix.attacks.scoring.scores import score_guess


def scored(guesses: Tensor, owners: Tensor) -> Measure:
    """Score guesses at owners, int64 (releases, rows, N) both."""
    releases, rows, _ = guesses.shape
    pictures = Pictures(
        torch.zeros(releases * rows, 1, 2, 2), torch.zeros(releases * rows, dtype=torch.int64)
    )
    origins = [
        Origin(torch.arange(r * rows, (r + 1) * rows)[:, None], (0,), owners=owners[r])
        for r in range(releases)
    ]
    where = [(release, row) for release in range(releases) for row in range(rows)]
    guess = Guess(guesses.flatten(0, 1), torch.ones(len(where)), where)
    truth = Truth(pictures, torch.ones(len(pictures), dtype=torch.bool), origins)
    return score_guess("owners", guess, truth, Floors(pictures)).main


def masks(releases: int, rows: int, patches: int, k: int, rng: np.random.Generator) -> Tensor:
    """Return owners in equal shares, a mask for each release: int64 (releases, rows, patches)."""
    owners = np.repeat(np.arange(k), patches // k)
    drawn = torch.from_numpy(np.stack([rng.permutation(owners) for _ in range(releases)]))
    return drawn[:, None].expand(releases, rows, patches)


def tossed(releases: int, rows: int, patches: int, k: int, rng: np.random.Generator) -> Tensor:
    """Return a random guess for each release, as rows that vote have."""
    return torch.from_numpy(rng.integers(k, size=(releases, 1, patches))).expand(-1, rows, -1)


@pytest.mark.parametrize(("patches", "k"), [(16, 2), (16, 4), (64, 4)])
def test_a_coin_tossed_for_each_patch_fails_the_gate(patches: int, k: int) -> None:
    rng = np.random.default_rng(0)
    size = (60, 2, patches, k)
    measure = scored(tossed(*size, rng), masks(*size, rng))
    assert measure.floor == pytest.approx(measure.value, abs=0.03)
    assert measure.floor > 1 / k + 0.05
    assert not measure.beats_floor
    owners = masks(*size, np.random.default_rng(1))
    assert scored(owners, owners).beats_floor


def test_the_floor_is_repeatable_and_at_least_the_largest_share() -> None:
    rng = np.random.default_rng(0)
    owners = torch.tensor([0] * 14 + [1, 1]).expand(10, 4, 16)
    guesses = tossed(10, 4, 16, 2, rng)
    assert scored(guesses, owners).floor == 14 / 16
    even = masks(10, 4, 16, 2, rng)
    assert scored(guesses, even) == scored(guesses, even)


def test_one_release_alone_is_compared_with_its_patches_in_random_places() -> None:
    owners = [np.repeat([3, 7], 8)] * 50
    floor = attributed_blindly(owners, owners, [0] * 50, seed=0)
    assert floor == pytest.approx(0.6, abs=0.03)
    assert attributed(owners[0] % 2, owners[0]) == 0.5  # both are odd
    assert attributed(7 - owners[0], owners[0]) == 1


def test_rows_that_share_a_mask_and_a_guess_are_one_sample() -> None:
    measures = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        measures.append(scored(tossed(8, 8, 16, 2, rng), masks(8, 8, 16, 2, rng)))
    mean = np.mean([measure.value for measure in measures])
    assert {(measure.samples, measure.groups) for measure in measures} == {(64, 8)}
    assert np.mean([measure.low <= mean <= measure.high for measure in measures]) >= 0.85


def ordered(guesses: Tensor, order: Tensor, owners: Tensor | None = None) -> Measure:
    rows = len(guesses)
    pictures = Pictures(torch.zeros(rows, 1, 2, 2), torch.zeros(rows, dtype=torch.int64))
    origins = [
        Origin(torch.tensor([[i]]), (0,), order=order[i : i + 1],
               owners=None if owners is None else owners[i : i + 1])
        for i in range(rows)
    ]  # fmt: skip
    guess = Guess(guesses, torch.ones(rows), [(i, 0) for i in range(rows)])
    truth = Truth(pictures, torch.ones(rows, dtype=torch.bool), origins)
    return score_guess("order", guess, truth, Floors(pictures)).main


def test_slots_that_an_attack_leaves_out_are_wrong() -> None:
    order = torch.stack([torch.randperm(64) for _ in range(20)])
    one = torch.full((20, 64), -1)
    one[:, 0] = order[:, 0]
    measure = ordered(one, order)
    assert measure.value == 1 / 64
    assert not measure.beats_floor
    assert ordered(order, order).beats_floor


def test_slots_that_had_no_patch_do_not_count() -> None:
    order = torch.stack([torch.randperm(16) for _ in range(10)])
    has_patch = torch.arange(16).expand(10, 16) < 8
    guessed = torch.where(has_patch, order, -1)
    assert ordered(guessed, order, torch.where(has_patch, 0, -1)).value == 1
    assert ordered(guessed, order).value == 0.5
    with pytest.raises(ValueError, match="no release has a patch"):
        ordered(guessed, order, torch.full((10, 16), -1))
