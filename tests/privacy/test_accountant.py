"""Conversions against dp-accounting, against the exact answer, and against kept figures."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.privacy import Gaussian, GaussianNoise, Ledger, Release
from flwr_splitmix.privacy.accountant import (
    ORDERS,
    delta_from_rdp,
    epsilon_from_rdp,
    rdp_curve,
    rho_for,
)
from flwr_splitmix.privacy.costs import release_costs
from tests.privacy.gaussian import exact_delta, exact_epsilon

SHARED_ORDERS = [1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 1.75, *range(2, 65), 96, 128, 192, 256]


def dp_accounting(multiplier: float, count: int) -> Any:
    rdp = importlib.import_module("dp_accounting.rdp")
    event = importlib.import_module("dp_accounting").GaussianDpEvent(multiplier)
    return rdp.RdpAccountant(SHARED_ORDERS).compose(event, count)


@pytest.mark.parametrize("multiplier", [0.7, 3.0, 40.0])
@pytest.mark.parametrize("count", [1, 10, 600])
@pytest.mark.parametrize("delta", [1e-2, 2e-4, 1e-9])
def test_pure_gaussian_composition_agrees_with_dp_accounting(
    multiplier: float, count: int, delta: float
) -> None:
    theirs = dp_accounting(multiplier, count)
    ledger = Ledger("add-remove")
    for _ in range(count):
        ledger.charge(Gaussian(noise_multiplier=multiplier))
    curve = rdp_curve(ledger.spent()[2], SHARED_ORDERS)
    np.testing.assert_allclose(curve, theirs._rdp, rtol=1e-9)
    epsilon, order = epsilon_from_rdp(curve, delta, SHARED_ORDERS)
    expected, best = theirs.get_epsilon_and_optimal_order(delta)
    if best > 1.02:  # dp-accounting leaves out the conversion at orders up to 1.01
        assert float(epsilon) == pytest.approx(expected, rel=1e-9)
        assert float(order) == best
    back = delta_from_rdp(curve, 1.5 * expected, SHARED_ORDERS)
    assert float(back) == pytest.approx(
        theirs.get_delta(1.5 * expected),
        rel=1e-9,
    )


@given(shift=st.floats(0.01, 300), log_delta=st.floats(-30, -4))
@settings(max_examples=150, deadline=None)
def test_epsilon_is_above_the_exact_one_and_not_far(shift: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    exact = exact_epsilon(delta, shift)
    epsilon, order = epsilon_from_rdp(rdp_curve(shift**2 / 2), delta)
    assert exact <= float(epsilon) <= 1.25 * exact + 0.25
    assert ORDERS[0] < order < ORDERS[-1] or epsilon < 0.01  # the grid reaches far enough
    papers, _ = epsilon_from_rdp(rdp_curve(shift**2 / 2), delta, conversion="papers")
    assert epsilon <= papers


@given(shift=st.floats(0.05, 30), epsilon=st.floats(0.01, 100))
@settings(max_examples=100, deadline=None)
def test_delta_is_above_the_exact_one_and_undone_by_epsilon(shift: float, epsilon: float) -> None:
    curve = rdp_curve(shift**2 / 2)
    delta = float(delta_from_rdp(curve, epsilon))
    assert exact_delta(epsilon, shift) <= delta * (1 + 1e-9)
    if 1e-300 < delta < 0.99:
        assert float(epsilon_from_rdp(curve, delta)[0]) == pytest.approx(epsilon, rel=1e-6)


@given(epsilon=st.floats(0.05, 1e4), log_delta=st.floats(-40, -2))
@settings(max_examples=100, deadline=None)
def test_the_largest_slope_for_an_epsilon_has_that_epsilon(
    epsilon: float, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    rho = rho_for(epsilon, delta)
    assert float(epsilon_from_rdp(rdp_curve(rho), delta)[0]) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("smashed", "label", "view", "slope", "figures"),
    [
        ("kept", "after", "alone", 0.30625, (7.53, 6.71, 865.5, 862.2)),
        ("kept", "before", "alone", 1.05625, (15.87, 14.71, 2737.4, 2733.5)),
        ("kept", "before", "sum", 0.55625, (10.71, 9.73, 1499.1, 1495.5)),
        ("kept", "after", "sum", 0.18125, (5.58, 4.88, 539.8, 536.8)),
        ("all", "after", "sum", 0.153125, (5.08, 4.41, 464.9, 462.0)),
    ],
)
def test_the_five_placements_at_one_and_600_epochs(
    smashed: str, label: str, view: str, slope: float, figures: tuple[float, ...]
) -> None:
    """DP-CutMixSL, Table 2: D_s = 10, Delta = 0.15, delta 2e-4; k = 2 even, variances 66/255."""
    variance = 66 / 255
    noise = GaussianNoise.from_plain(
        {
            "sigma_s": math.sqrt(variance),
            "sigma_y": math.sqrt(variance),
            "clip": "range",
            "clip_norm": 0.15,
            "smashed_noise": smashed,
            "label_noise": label,
            "clamp_labels": view == "alone",
        }
    )
    release = Release(
        noise=noise,
        patches=10,
        width=1,
        ratio=0.5,
        seen="sum" if view == "sum" else "alone",
        ratios=(0.5, 0.5),
    )
    rho = float(release_costs(release, "replace").sum())
    assert rho * variance == pytest.approx(slope, rel=1e-12)
    epsilons = [
        float(epsilon_from_rdp(rdp_curve(epochs * rho), 2e-4, conversion=conversion)[0])
        for epochs in (1, 600)
        for conversion in ("papers", "tight")
    ]
    np.testing.assert_allclose(epsilons[:2], figures[:2], atol=0.006)
    np.testing.assert_allclose(epsilons[2:], figures[2:], atol=0.06)


def test_at_600_epochs_the_best_order_is_near_1_1() -> None:
    _, order = epsilon_from_rdp(rdp_curve(600 * 0.30625 / (66 / 255)), 2e-4)
    assert 1.05 < float(order) < 1.15


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, math.nan])
def test_delta_outside_0_to_1_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=f"delta is {delta}; it must lie strictly between 0 and 1"):
        epsilon_from_rdp(rdp_curve(1.0), delta)


@pytest.mark.parametrize("order", [1, 0.5, math.nan, math.inf])
def test_an_order_of_at_most_1_is_refused(order: float) -> None:
    with pytest.raises(ValueError, match=f"order is {order}; a Rényi order must be greater than 1"):
        rdp_curve(1.0, [order])


def test_an_unbounded_slope_has_no_finite_epsilon() -> None:
    curve = rdp_curve(math.inf)
    assert float(epsilon_from_rdp(curve, 1e-5)[0]) == math.inf
    assert float(delta_from_rdp(curve, 10.0)) == 1


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e-9])
def test_a_target_that_cannot_be_shown_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=f"epsilon is {epsilon}"):
        rho_for(epsilon, 1e-5)
