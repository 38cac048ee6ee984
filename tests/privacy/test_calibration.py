"""Noise for an epsilon gives that epsilon; plans for masks not yet drawn hold as they promise."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.mixers import sample_counts, sample_ratios
from flwr_splitmix.privacy import GaussianNoise, Ledger, RandomMasks, Release, ReleasePlan
from flwr_splitmix.privacy.costs import release_costs
from flwr_splitmix.privacy.masks import even_ratio, kept_distribution
from tests.privacy.placements import placements

NOISE = GaussianNoise(sigma_s=1.0, sigma_y=0.5)
RELEASE = Release(noise=NOISE, patches=16, width=192)


@pytest.mark.parametrize("target", [0.1, 1.0, 8.0, 1000.0])
@pytest.mark.parametrize("ratios", [1.0, 0.25, RandomMasks(alpha=2.0, failure=1e-6)], ids=str)
def test_the_noise_for_an_epsilon_costs_that_epsilon(
    target: float, ratios: float | RandomMasks
) -> None:
    plan = ReleasePlan(release=RELEASE, passes=30, delta=1e-5, kept=ratios, k=3)
    noise = plan.noise_for(target)
    assert noise.sigma_y == pytest.approx(0.5 * noise.sigma_s)
    reached = replace(plan, release=replace(RELEASE, noise=noise)).epsilon()
    assert reached <= target
    assert reached == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize("placement", placements(clamp=False), ids=str)
def test_a_plan_with_known_ratios_costs_what_the_ledger_will_charge(placement: Any) -> None:
    k, passes = placement.k, 4
    plan = ReleasePlan(release=placement.release, passes=passes, delta=1e-5, kept=1 / k, k=k)
    ledger = Ledger()
    for epoch in range(passes):
        ledger.charge(placement.release, epoch=epoch)
    assert plan.epsilon() == pytest.approx(ledger.epsilon(1e-5), rel=1e-12)


def test_enumerated_ratios_are_charged_one_by_one() -> None:
    ratios = np.random.default_rng(0).integers(0, 17, size=20) / 16
    plan = ReleasePlan(release=RELEASE, passes=20, delta=1e-5, kept=ratios.tolist(), k=2)
    ledger = Ledger()
    ledger.charge_series(RELEASE, ratios, epochs=np.arange(20))
    assert plan.epsilon() == pytest.approx(ledger.epsilon(1e-5), rel=1e-12)


def test_what_is_known_of_the_masks_orders_the_plans() -> None:
    plan = ReleasePlan(release=RELEASE, passes=200, delta=1e-5, k=2)
    even = replace(plan, kept=even_ratio(16, 2)).epsilon()
    drawn = replace(plan, kept=RandomMasks(alpha=6.0, failure=1e-6)).epsilon()
    assert even < drawn < plan.epsilon()


def test_the_rarer_the_failure_the_dearer_the_plan() -> None:
    plan = ReleasePlan(release=RELEASE, passes=50, delta=1e-3, k=2)
    multipliers = [
        replace(plan, kept=RandomMasks(alpha=2.0, failure=failure)).rho
        for failure in (9e-4, 1e-5, 1e-9)
    ]
    assert multipliers == sorted(multipliers)
    # The failure is taken from delta: a hundredth of it hardly matters, nearly all of it does.
    with_failure = replace(plan, kept=RandomMasks(alpha=2.0, failure=9.999e-4))
    assert with_failure.epsilon() > replace(with_failure, delta=2e-3).epsilon() + 1


@pytest.mark.parametrize("passes", [1, 5])
def test_masks_that_may_be_drawn_cost_at_most_the_worst_ones(passes: int) -> None:
    """Where the bound is that of the worst masks, no tenth of delta is kept for them."""
    noise = GaussianNoise(sigma_s=20.0, sigma_y=5.0)
    release = replace(RELEASE, noise=noise)
    masks = RandomMasks(alpha=1.0, failure=1e-6)
    plan = ReleasePlan(release=release, passes=passes, delta=1e-5, kept=masks, k=2)
    worst = replace(plan, kept=1.0)
    assert plan.epsilon() <= worst.epsilon()
    assert plan.noise_for(1.0).sigma_s <= worst.noise_for(1.0).sigma_s
    alone = replace(plan, k=1)
    assert alone.epsilon() == worst.epsilon()
    full = replace(plan, release=replace(release, family="full"))
    assert full.epsilon() == replace(full, kept=1.0).epsilon()
    assert full.noise_for(1.0) == replace(full, kept=1.0).noise_for(1.0)


@pytest.mark.parametrize(
    ("k", "alpha"), [(2, 0.5), (2, 6.0), (4, 2.0), (1, 2.0), (2, None), (3, None), (17, None)]
)
def test_the_distribution_of_counts_is_that_of_the_mixers_draw(k: int, alpha: float | None) -> None:
    rng, draws = np.random.default_rng(0), 20_000
    counts = [int(sample_counts(16, k, alpha, rng)[0]) for _ in range(draws)]
    frequencies = np.bincount(counts, minlength=17) / draws
    np.testing.assert_allclose(frequencies, kept_distribution(16, k, alpha), atol=0.015)


@pytest.mark.parametrize("alpha", [1e-300, 0.5, 6.0, 1e6, 1e15, 1e308])
def test_the_distribution_of_kept_patches_is_exact_for_any_alpha(alpha: float) -> None:
    """Of large ones the logarithms of gamma functions lose all digits, or overflow."""
    patches, k = 12, 3

    def rising(start: Fraction, factors: int) -> Fraction:
        return math.prod((start + i for i in range(factors)), start=Fraction(1))

    own_alpha, other_alphas = Fraction(alpha), (k - 1) * Fraction(alpha)
    weights = [
        math.comb(patches, a) * rising(own_alpha, a) * rising(other_alphas, patches - a)
        for a in range(patches + 1)
    ]
    exact = [float(weight / sum(weights)) for weight in weights]
    np.testing.assert_allclose(kept_distribution(patches, k, alpha), exact, rtol=1e-9)


@pytest.mark.parametrize("family", ["cutmix", "mixup"])
@pytest.mark.parametrize("label_noise", ["after", "before"])
@pytest.mark.parametrize("view", ["alone", "sum"])
def test_masks_yet_to_be_drawn_cost_more_than_planned_as_rarely_as_promised(
    family: Any, label_noise: Any, view: Any
) -> None:
    k, alpha, passes, failure, runs = 3, 1.5, 40, 0.05, 1000
    noise = replace(NOISE, label_noise=label_noise, clamp_labels=False, sigma_s=4.0)
    release = replace(RELEASE, noise=noise, family=family, seen=view, ratios=(1.0,))
    masks = RandomMasks(alpha=alpha, failure=failure)
    planned = ReleasePlan(release=release, passes=passes, delta=0.1, kept=masks, k=k).rho
    rng = np.random.default_rng(0)
    if family == "cutmix":
        groups = np.array([sample_counts(16, k, alpha, rng) / 16 for _ in range(runs * passes)])
    else:
        groups = np.array([sample_ratios(k, alpha, rng) for _ in range(runs * passes)])
    costs = release_costs(release, "replace", groups[:, 0], groups).sum(axis=1)
    totals = costs.reshape(runs, passes).sum(axis=1)
    assert (totals > planned).mean() <= failure
    # Of Mixup's sums with labels noised before, a plan counts the labels at their dearest.
    loose = (family, label_noise, view) == ("mixup", "before", "sum")
    assert planned < (2.5 if loose else 1.5) * np.quantile(totals, 1 - failure)


@pytest.mark.parametrize("k_times", [False, True])
@pytest.mark.parametrize("alpha", [None, 1.5])
@pytest.mark.parametrize("n", [4, 5])
def test_a_plan_for_clients_of_whom_some_are_left_over_holds(
    n: int, alpha: float | None, k_times: bool
) -> None:
    """Those in a smaller group send more: a plan for full groups lies below what they spend."""
    k, passes, failure, runs = 3, 40, 0.05, 200
    release = replace(RELEASE, noise=replace(NOISE, sigma_s=4.0))
    masks = RandomMasks(alpha=alpha, failure=failure, clients=n, k_times=k_times)
    plan = ReleasePlan(release=release, passes=passes, delta=0.1, kept=masks, k=k)
    rng = np.random.default_rng(0)
    totals = np.zeros(runs)
    for run in range(runs):
        sizes = np.where(rng.random(passes) < (n % k) / n, n % k, k)
        ratios = [
            sample_counts(16, int(size), alpha, rng)[0] / 16
            for size in sizes
            for _ in range(size if k_times else 1)
        ]
        totals[run] = release_costs(release, "replace", np.array(ratios)).sum()
    assert (totals > plan.rho).mean() <= failure
    assert plan.rho < 1.3 * np.quantile(totals, 1 - failure)
    if n % k == 1 and not k_times:  # alone, with everything, in one step of n
        full = replace(plan, kept=replace(masks, clients=None))
        assert full.rho < totals.mean()


@pytest.mark.parametrize("n", [4, 5, 6])
def test_a_plan_for_the_worst_batch_of_each_pass_holds(n: int) -> None:
    """A server's ledger charges these; the plan of one record lies below it."""
    k, alpha, passes, batches, failure, runs = 3, 1.5, 40, 8, 0.05, 200
    release = replace(RELEASE, noise=replace(NOISE, sigma_s=4.0))
    masks = RandomMasks(alpha=alpha, failure=failure, clients=n, batches=batches)
    plan = ReleasePlan(release=release, passes=passes, delta=0.1, kept=masks, k=k)
    rng = np.random.default_rng(0)
    totals = np.zeros(runs)
    for run in range(runs):
        sizes = np.where(rng.random(passes * batches) < (n % k) / n, n % k, k)
        ratios = [sample_counts(16, int(size), alpha, rng)[0] / 16 for size in sizes]
        costs = release_costs(release, "replace", np.array(ratios)).sum(axis=-1)
        totals[run] = costs.reshape(passes, batches).max(axis=1).sum()
    assert (totals > plan.rho).mean() <= failure
    assert plan.rho < 1.1 * np.quantile(totals, 1 - failure)
    assert replace(plan, kept=replace(masks, batches=1)).rho < totals.min()


@pytest.mark.parametrize("k_times", [False, True])
def test_a_plan_for_several_numbers_of_clients_holds_whichever_come(k_times: bool) -> None:
    """Alone with 4, in a pair with 5: neither is dearer than the other in every respect."""
    k, passes, batches, failure, runs = 3, 20, 4, 0.05, 200
    release = replace(RELEASE, noise=replace(NOISE, sigma_s=4.0))
    masks = RandomMasks(
        alpha=1.5, failure=failure, clients=(4, 5, 6), k_times=k_times, batches=batches
    )
    plan = ReleasePlan(release=release, passes=passes, delta=0.1, kept=masks, k=k)
    each = [replace(plan, kept=replace(masks, clients=n)).rho for n in (4, 5, 6)]
    of_numpy: Any = np.int64(5)
    assert plan.rho >= max(each)
    assert replace(plan, kept=replace(masks, clients=(5,))).rho == each[1]
    assert replace(plan, kept=replace(masks, clients=of_numpy)).rho == each[1]
    rng = np.random.default_rng(0)
    totals = np.zeros(runs)
    for run in range(runs):
        costs = []
        for n in rng.integers(4, 6, size=passes * batches):
            size = n % k if rng.random() < (n % k) / n else k
            drawn = [sample_counts(16, size, 1.5, rng)[0] / 16 for _ in range(size**k_times)]
            costs.append(release_costs(release, "replace", np.array(drawn)).sum())
        totals[run] = np.reshape(costs, (passes, batches)).max(axis=1).sum()
    assert (totals > plan.rho).mean() <= failure


def test_of_all_clients_in_full_groups_the_plan_is_the_same() -> None:
    plan = ReleasePlan(release=RELEASE, passes=20, delta=1e-5, k=3)
    some = RandomMasks(alpha=6.0, failure=1e-6)
    assert replace(plan, kept=replace(some, clients=6)).rho == replace(plan, kept=some).rho


def test_ratios_that_hardly_vary_are_nearly_even() -> None:
    """The chance of most counts is 0 in floats: its logarithm must not be what is bounded."""
    plan = ReleasePlan(release=RELEASE, passes=200, delta=1e-5, kept=0.5, k=2)
    drawn = replace(plan, kept=RandomMasks(alpha=1e9, failure=1e-6))
    assert plan.rho < drawn.rho < 1.3 * plan.rho


def test_even_masks_keep_at_most_the_rounded_up_share() -> None:
    rng = np.random.default_rng(0)
    for n, k in ((16, 3), (64, 10), (4, 4), (5, 1)):
        counts = np.concatenate([sample_counts(n, k, None, rng) for _ in range(20)])
        assert even_ratio(n, k) == counts.max() / n


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"passes": 0}, "passes is 0"),
        ({"k": 0}, "k is 0"),
        ({"kept": 1.2}, "not in 0..1"),
        ({"kept": [0.5]}, "1 ratio for 2 passes"),
        ({"kept": RandomMasks(alpha=1, failure=0.1)}, "failure is 0.1; it is a part of delta"),
        (
            {"kept": RandomMasks(alpha=1, failure=1e-6, clients=2), "k": 3},
            "k is 3 for 2 clients; a group has at most all",
        ),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReleasePlan(**{"release": RELEASE, "passes": 2, "delta": 1e-5, **changes})


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"clip": "none"}, "no clipping of the smashed data"),
        ({"sigma_s": 0.0}, r"no noise on the smashed data \(sigma_s = 0\)"),
        ({"sigma_y": 0.0}, r"no noise on the labels \(sigma_y = 0\)"),
        ({"sigma_s": 1e-9}, "noise below the resolution of float32"),
    ],
)
def test_no_sigma_makes_up_for_what_is_missing(noise: dict[str, Any], message: str) -> None:
    release = replace(RELEASE, noise=replace(NOISE, **noise))
    plan = ReleasePlan(release=release, passes=1, delta=1e-5)
    assert plan.epsilon() == np.inf
    with pytest.raises(ValueError, match=f"no sigma gives epsilon 8.0: {message}"):
        plan.noise_for(8.0)


def test_nothing_sent_costs_nothing() -> None:
    plan = ReleasePlan(release=RELEASE, passes=3, delta=1e-5, kept=0.0)
    assert plan.epsilon() == 0
    with pytest.raises(ValueError, match="nothing is sent"):
        plan.noise_for(1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"alpha": 0.0}, "alpha is 0.0"), ({"alpha": np.inf}, "alpha is inf"),
     ({"failure": 0.0}, "failure is 0.0"), ({"failure": 1.0}, "failure is 1.0"),
     ({"clients": 0}, "clients is 0"), ({"batches": 0}, "batches is 0")],
)  # fmt: skip
def test_masks_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomMasks(**{"alpha": 1.0, "failure": 0.1, **wrong})
