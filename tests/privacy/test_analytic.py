"""The exact Gaussian mechanism against scipy's normal distribution and a library's solver."""

from __future__ import annotations

import importlib
import math

import pytest

from flwr_splitmix.privacy.analytic import gaussian_delta, gaussian_epsilon, gaussian_sigma
from tests.privacy.gaussian import exact_delta, exact_epsilon

accountant = importlib.import_module("dp_accounting.pld.accountant")
common = importlib.import_module("dp_accounting.pld.common")


@pytest.mark.parametrize("shift", [0.01, 0.3, 1.0, 1.7, 5.0])
def test_epsilon_and_delta_are_those_of_two_normal_distributions(shift: float) -> None:
    for delta in (1e-3, 1e-5, 1e-9):
        epsilon = gaussian_epsilon(delta, shift)
        assert epsilon == pytest.approx(exact_epsilon(delta, shift), rel=1e-9)
        if epsilon:
            assert gaussian_delta(epsilon, shift) == pytest.approx(delta, rel=1e-7)
    for epsilon in (0.0, 0.1, 1.0, 8.0):
        assert gaussian_delta(epsilon, shift) == pytest.approx(
            exact_delta(epsilon, shift), rel=1e-7, abs=1e-30
        )


@pytest.mark.parametrize(("epsilon", "delta"), [(8.0, 1e-5), (1.0, 1e-5), (0.1, 1e-6), (20, 1e-8)])
def test_sigma_is_that_of_a_library(epsilon: float, delta: float) -> None:
    parameters = common.DifferentialPrivacyParameters(epsilon, delta)
    for sensitivity in (1.0, 2.0):
        theirs = accountant.get_smallest_gaussian_noise(parameters, 1, sensitivity)
        ours = gaussian_sigma(epsilon, delta, sensitivity)
        assert ours == pytest.approx(theirs, rel=2e-3)  # theirs stops there
        shift = sensitivity / ours
        assert exact_delta(epsilon, shift) <= delta * (1 + 1e-9)
        assert exact_delta(epsilon, shift * 1.0001) > delta  # less noise would not do


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(8.0, 1e-310), (8.0, 5e-324), (1e308, 1e-5), (1.7e308, 5e-324), (1e-310, 1e-5)],
)
def test_the_ends_of_floats_need_a_finite_noise(epsilon: float, delta: float) -> None:
    """Neither `1 / delta` nor twice an epsilon need be a float."""
    sigma = gaussian_sigma(epsilon, delta, 2.0)
    assert 0 < sigma < math.inf
    assert gaussian_delta(epsilon, 2 / sigma) <= delta
    if epsilon == 8.0:
        assert gaussian_epsilon(delta, 2 / sigma) == pytest.approx(epsilon, rel=1e-2)
        assert gaussian_sigma(epsilon, 1e-300, 2.0) < sigma < 10
    if epsilon > 1e300:
        assert sigma == pytest.approx(2 / math.sqrt(2) / math.sqrt(epsilon), rel=1e-9)
    if epsilon < 1e-300:  # the distance of two normal distributions is delta
        assert sigma == pytest.approx(2 / (delta * math.sqrt(2 * math.pi)), rel=1e-9)


def test_far_tails_are_numbers() -> None:
    for shift in (40.0, 300.0, 1000.0):
        epsilon = gaussian_epsilon(1e-5, shift)
        assert epsilon == pytest.approx(shift**2 / 2 + 4.265 * shift, rel=1e-3)
    assert gaussian_epsilon(1e-5, math.inf) == math.inf
    assert gaussian_epsilon(1e-5, 0.0) == 0.0
    assert (gaussian_delta(1.0, 0.0), gaussian_delta(1.0, math.inf)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0.0, 1e-5, 1.0), r"epsilon is 0\.0; it must be a number above 0"),
        ((math.inf, 1e-5, 1.0), "epsilon is inf; it must be a number above 0"),
        ((1.0, 1e-5, -1.0), r"sensitivity is -1\.0; it must be a number above 0"),
        ((1e-310, 1e-310, 1.0), "epsilon is 1e-310 and delta 1e-310 .* larger epsilon or delta"),
        ((1.0, 1.0, 1.0), r"delta is 1\.0; it must lie strictly between 0 and 1"),
    ],
)
def test_what_no_noise_can_be_for_is_named(
    values: tuple[float, float, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        gaussian_sigma(*values)
