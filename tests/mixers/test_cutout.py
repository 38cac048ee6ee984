"""Random Cutout: some patches of one client, nothing in the gaps, the label as it was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flwr_splitmix.mixers import PatchShare, Plan, RandomCutout, SmashedShape, Upload
from flwr_splitmix.mixers.masks import sample_counts

B, N, D, L = 4, 10, 3, 5


def shape(patches: int = N, prefix: int = 0) -> SmashedShape:
    return SmashedShape(B, patches, D, prefix)


def shares(plan: Plan, n: int) -> list[PatchShare]:
    patch_shares = [plan.shares(client)[0] for client in range(n)]
    assert all(isinstance(share, PatchShare) for share in patch_shares)
    return patch_shares  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("ratio", "patches", "count"),
    [(0.5, 10, 5), (0.25, 64, 16), (1.0, 7, 7), (0.3, 16, 5), (0.01, 16, 1), (0.999, 16, 16)],
)
def test_the_ratio_says_how_many_patches_stay(ratio: float, patches: int, count: int) -> None:
    plan = RandomCutout(ratio).plan(range(3), shape(patches), np.random.default_rng(0))
    assert [share.count() for share in shares(plan, 3)] == [count] * 3


def test_a_drawn_ratio_is_the_first_of_two_clients() -> None:
    """Dirichlet-multinomial: mean N/2, variance N/4 (1 + (N - 1) / (2 alpha + 1))."""
    patches, alpha, size = 64, 6.0, 4_000
    plan = RandomCutout(alpha=alpha).plan(range(size), shape(patches), np.random.default_rng(5))
    counts = np.array([share.count() for share in shares(plan, size)])
    variance = patches / 4 * (1 + (patches - 1) / (2 * alpha + 1))
    assert counts.mean() == pytest.approx(patches / 2, abs=4 * math.sqrt(variance / size))
    assert counts.var() == pytest.approx(variance, rel=0.1)
    even = RandomCutout(alpha=None).plan(range(20), shape(patches), np.random.default_rng(5))
    assert {share.count() for share in shares(even, 20)} == {32}


def test_a_drawn_ratio_keeps_at_least_one_patch_and_other_draws_as_they_are() -> None:
    """The label stays whole: without a patch, the zeros of an upload would train that class."""
    size = 200
    for alpha in (0.01, None):
        plan = RandomCutout(alpha=alpha).plan(range(size), shape(1), np.random.default_rng(7))
        assert {share.count() for share in shares(plan, size)} == {1}
    plan = RandomCutout(alpha=0.2).plan(range(size), shape(4), np.random.default_rng(7))
    rng, drawn = np.random.default_rng(7), []
    for _ in range(size):
        drawn.append(int(sample_counts(4, 2, 0.2, rng)[0]))
        rng.integers(2**32)
    assert min(drawn) == 0
    assert [share.count() for share in shares(plan, size)] == [max(1, n) for n in drawn]


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("prefix", [0, 2])
def test_gaps_stay_empty_and_labels_as_they_were(prefix: int, per_sample: bool) -> None:
    mixer = RandomCutout(0.4, mask_per_sample=per_sample)
    plan = mixer.plan(range(2), shape(prefix=prefix), np.random.default_rng(2))
    smashed = [torch.randn(plan.shape.size, dtype=torch.float64) for _ in range(2)]
    labels = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 4, 0, 1])]
    uploads = {
        client: Upload([share.upload(smashed[client])[0]], labels[client])
        for client, share in enumerate(shares(plan, 2))
    }
    mixed = mixer.merge(uploads, plan, num_classes=L)
    assert torch.equal(mixed.targets, F.one_hot(torch.cat(labels), L).double())
    gradient = torch.randn_like(mixed.smashed)
    back = mixer.split(gradient, mixed, plan)
    masks = []
    for client, share in enumerate(shares(plan, 2)):
        mask = torch.zeros(B, N, 1, dtype=torch.float64)
        mask.scatter_(1, share.positions(B).expand(B, -1)[:, :, None], 1)
        assert mask.sum(1).flatten().tolist() == [4] * B
        rows = slice(client * B, (client + 1) * B)
        assert torch.equal(mixed.smashed[rows, prefix:], mask * smashed[client][:, prefix:])
        assert torch.equal(mixed.smashed[rows, :prefix], smashed[client][:, :prefix])
        placed = torch.zeros_like(smashed[client])
        (returned,) = back[client]
        assert returned is not None
        share.place(placed, returned)
        assert torch.equal(placed[:, prefix:], mask * gradient[rows, prefix:])
        masks.append(mask)
    assert not torch.equal(masks[0], masks[1])
    assert bool((masks[0] == masks[0][:1]).all()) != per_sample


def test_clients_and_steps_have_masks_of_their_own() -> None:
    rng = np.random.default_rng(0)
    seeds = [s.seed for _ in range(5) for s in shares(RandomCutout().plan([0, 1], shape(), rng), 2)]
    assert len(set(seeds)) == 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ratio": 0.0}, r"ratio is 0\.0; it must be above 0 and at most 1, or None to draw it"),
        ({"ratio": -0.5}, r"ratio is -0\.5"),
        ({"ratio": 1.5}, r"ratio is 1\.5"),
        ({"ratio": math.nan}, "ratio is nan"),
        ({"alpha": 0.0}, r"alpha is 0\.0; it must be greater than 0"),
        ({"alpha": -1.0}, r"alpha is -1\.0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RandomCutout(**options)


def test_fixed_positions_are_the_same_in_every_step_and_run_and_differ_between_clients() -> None:
    mixer = RandomCutout(0.5, fixed_positions=True)

    def kept(seed: int) -> list[list[int]]:
        plan = mixer.plan(range(3), shape(16), np.random.default_rng(seed))
        return [share.positions(B).tolist() for share in shares(plan, 3)]

    first = kept(0)
    assert kept(1) == first
    assert all(len(positions) == 8 for positions in first)
    assert len({tuple(positions) for positions in first}) == 3
