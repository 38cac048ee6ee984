"""Numbers and positions of kept patches: distributions, reference values, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flwr_splitmix.mixers import patch_order, sample_counts
from flwr_splitmix.mixers.masks import Rounding

ROUNDINGS: list[Rounding] = ["multinomial", "largest-remainder"]


def draws(n: int, k: int, alpha: float | None, size: int, rounding: Rounding) -> np.ndarray:
    rng = np.random.default_rng(12)
    return np.stack([sample_counts(n, k, alpha, rng, rounding=rounding) for _ in range(size)])


@pytest.mark.parametrize(
    ("n", "k", "alpha", "expected"),
    [
        (64, 2, 1.0, 0.031),
        (64, 4, 1.0, 0.17),
        (16, 2, 1.0, 0.118),
        (16, 2, 6.0, 0.003),
        (64, 2, 6.0, 0.0),
    ],
)
def test_zero_counts_are_as_frequent_expected(
    n: int, k: int, alpha: float, expected: float
) -> None:
    size = 20_000
    frequency = (draws(n, k, alpha, size, "multinomial") == 0).any(1).mean()
    rounded = 0.006 if expected >= 0.1 else 0.001  # the rounding of the values above
    assert frequency == pytest.approx(
        expected, abs=rounded + 4 * math.sqrt(max(expected, 1e-4) / size)
    )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 6.0])
def test_every_member_keeps_the_same_number_on_average(rounding: Rounding, alpha: float) -> None:
    n, k, size = 64, 3, 6_000
    counts = draws(n, k, alpha, size, rounding)
    assert (counts.sum(1) == n).all()
    assert counts.min() >= 0
    error = counts.std(0).max() / math.sqrt(size)
    assert np.abs(counts.mean(0) - n / k).max() < 4 * error


def test_counts_are_dirichlet_multinomial() -> None:
    """For alpha = 1 and k = 2 every count from 0 to N is equally likely."""
    n, size = 9, 20_000
    frequencies = np.bincount(draws(n, 2, 1.0, size, "multinomial")[:, 0], minlength=n + 1) / size
    assert np.abs(frequencies - 1 / (n + 1)).max() < 4 * math.sqrt(0.1 / size)


def test_the_spread_of_the_ratios_follows_alpha() -> None:
    """Var(count) = N p (1-p) (1 + (N-1) / (k alpha + 1)): the Dirichlet-multinomial's."""
    n, k, alpha = 64, 4, 6.0
    counts = draws(n, k, alpha, 20_000, "multinomial")
    p = 1 / k
    expected = n * p * (1 - p) * (1 + (n - 1) / (k * alpha + 1))
    assert counts.var(0) == pytest.approx(np.full(k, expected), rel=0.06)


def test_without_alpha_counts_are_even_and_the_remainder_is_anyones() -> None:
    counts = draws(16, 3, None, 3_000, "multinomial")
    assert (np.sort(counts, axis=1) == [5, 5, 6]).all()
    share = (counts == 6).mean(0)
    assert share == pytest.approx(np.full(3, 1 / 3), abs=0.04)


def test_largest_remainder_is_within_one_of_the_exact_ratio() -> None:
    n, k, alpha = 10, 3, 2.0
    rng, same = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(200):
        exact = n * same.dirichlet(np.full(k, alpha))
        same.random(k)  # the draw that breaks ties
        counts = sample_counts(n, k, alpha, rng, rounding="largest-remainder")
        assert (np.abs(counts - exact) < 1).all()
        order = np.argsort(exact - np.floor(exact))
        raised = counts > np.floor(exact)
        assert (np.sort(raised[order]) == raised[order]).all()


@pytest.mark.parametrize("alpha", [None, 0.1, 6.0])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_nobody_keeps_fewer_than_min_patches(alpha: float | None, rounding: Rounding) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        counts = sample_counts(8, 3, alpha, rng, rounding=rounding, min_patches=2)
        assert counts.min() >= 2
        assert counts.sum() == 8
    assert sample_counts(6, 3, alpha, rng, min_patches=2).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"k": 0}, "k is 0 and n_patches is 8; both must be at least 1"),
        ({"n_patches": 0}, "n_patches is 0"),
        ({"alpha": 0.0}, "alpha is 0.0; it must be greater than 0 and at most 1e.100, or None"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": math.inf}, "alpha is inf; for even counts it must be None"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": 1.7e308}, "alpha is 1.7e.308; it must be greater than 0 and at most 1e.100"),
        ({"rounding": "ceil"}, "rounding is 'ceil'; it must be one of multinomial, largest-rem"),
        ({"min_patches": -1}, "min_patches is -1"),
        (
            {"min_patches": 5},
            r"min_patches \(min-patches\) is 5, but a group's 2 members share 8 .* use 0 to 4",
        ),
    ],
)
def test_impossible_requests_are_refused(arguments: dict[str, object], sentence: str) -> None:
    usual = {"n_patches": 8, "k": 2, "alpha": 6.0, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match=sentence):
        sample_counts(**{**usual, **arguments})  # type: ignore[arg-type]


def test_the_order_of_patches_is_the_same_on_every_machine() -> None:
    """Client and server compute it apart: these values must never change."""
    assert patch_order(123, 8).tolist() == [0, 1, 3, 7, 4, 2, 5, 6]
    assert patch_order(123, 4, samples=2).tolist() == [[2, 1, 3, 0], [1, 3, 0, 2]]


def test_every_patch_is_equally_likely_at_every_place() -> None:
    size, n = 4_000, 6
    for orders in (
        np.stack([patch_order(seed, n) for seed in range(size)]),
        patch_order(7, n, samples=size),
    ):
        assert (np.sort(orders, axis=1) == np.arange(n)).all()
        frequency = np.stack([(orders == patch).mean(0) for patch in range(n)])
        assert np.abs(frequency - 1 / n).max() < 4.5 * math.sqrt(1 / n / size)


def test_samples_of_a_batch_have_permutations_of_their_own() -> None:
    orders = patch_order(3, 16, samples=20)
    assert len({tuple(row) for row in orders.tolist()}) == 20
