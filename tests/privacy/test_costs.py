"""The closed forms, against what the mechanism really does to the worst pair of records."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.privacy import GaussianNoise, Ledger, Relation, Release
from flwr_splitmix.privacy.costs import RESOLUTION, release_costs
from flwr_splitmix.privacy.noise import Clip
from tests.privacy.placements import CLASSES, PATCHES, WIDTH, Placement, placements, worst_pair

NOISE = GaussianNoise(sigma_s=0.8, sigma_y=0.4, clamp_labels=False)


def measured(placement: Placement, pair: list[tuple[torch.Tensor, torch.Tensor]]) -> np.ndarray:
    """Return the slopes (2,): means from a noiseless mechanism, variances from draws."""
    silent = replace(placement, noise=replace(placement.noise, sigma_s=0.0, sigma_y=0.0))
    generator = torch.Generator().manual_seed(0)
    means = [silent.draw(*record, 1, generator)[0] for record in pair]
    variance = placement.draw(*pair[0], 20_000, generator).var(axis=0)
    shift = np.abs(means[0] - means[1])
    terms = np.divide(shift**2, 2 * variance, out=np.zeros_like(shift), where=shift > 0)
    return np.array([terms[:-CLASSES].sum(), terms[-CLASSES:].sum()])


@pytest.mark.parametrize("placement", placements(clamp=False, sigma_s=0.8, sigma_y=0.4), ids=str)
def test_every_placement_costs_what_is_measured(placement: Placement) -> None:
    replaced = release_costs(placement.release, "replace")
    np.testing.assert_allclose(replaced, measured(placement, list(worst_pair())), rtol=0.02)
    present, _ = worst_pair()
    gone = torch.zeros(PATCHES, WIDTH), torch.zeros(CLASSES)
    removed = release_costs(placement.release, "add-remove")
    np.testing.assert_allclose(removed, measured(placement, [present, gone]), rtol=0.02)


@pytest.mark.parametrize(
    ("clip", "patch"), [("range", [9.0, 9.0, 9.0]), ("sample", [0.0, 9.0, 0.0])]
)
@pytest.mark.parametrize("family", ["full", "mixup", "cutmix"])
def test_the_other_clips_cost_what_their_worst_record_does(
    clip: Clip, patch: list[float], family: str
) -> None:
    record = torch.zeros(PATCHES, WIDTH)
    # All of a sample's norm may be in one patch that is kept.
    record[: PATCHES if clip == "range" else 1] = torch.tensor(patch)
    pair = [(record, torch.eye(CLASSES)[0]), (-record, torch.eye(CLASSES)[1])]
    noise = replace(NOISE, clip=clip, clip_norm=0.3)
    cases = [p for p in placements(clamp=False) if p.family == family]
    for case in cases:
        kinds = case.noise.smashed_noise, case.noise.label_noise
        placement = replace(
            case, noise=replace(noise, smashed_noise=kinds[0], label_noise=kinds[1])
        )
        expected = measured(placement, pair)
        np.testing.assert_allclose(
            release_costs(placement.release, "replace"), expected, rtol=0.02, err_msg=str(placement)
        )


def release(**changes: object) -> Release:
    values: dict[str, object] = {
        "noise": NOISE,
        "patches": 8,
        "width": 3,
        "ratio": 0.25,
        **changes,
    }
    return Release(**values)  # type: ignore[arg-type]


def test_a_range_costs_as_much_wherever_an_absent_record_would_lie() -> None:
    ranged = release(noise=replace(NOISE, clip="range", clip_norm=0.5))
    expected = 0.5**2 * 2 * 3 / (2 * 0.8**2)  # Delta^2 a d over twice the variance
    for relation in ("replace", "add-remove"):
        assert release_costs(ranged, relation)[0] == pytest.approx(expected, rel=1e-12)


def test_clamped_labels_get_no_credit_for_being_summed() -> None:
    for label_noise in ("after", "before"):
        noise = replace(NOISE, label_noise=label_noise)
        ratios = (0.25,) * 4
        summed = release(noise=replace(noise, clamp_labels=True), seen="sum", ratios=ratios)
        alone = release(noise=noise)
        plain = release(noise=noise, seen="sum", ratios=ratios)
        assert release_costs(summed, "replace")[1] == release_costs(alone, "replace")[1]
        assert release_costs(plain, "replace")[1] == pytest.approx(
            release_costs(alone, "replace")[1] / 4
        )


def test_prefix_tokens_are_scaled_and_not_masked() -> None:
    unit = 4 / (2 * 0.8**2)
    assert release_costs(release(prefix=2), "replace")[0] == pytest.approx(unit * (2 + 2 * 0.25**2))
    summed = release(prefix=2, seen="sum", ratios=(0.25, 0.75))
    assert release_costs(summed, "replace")[0] == pytest.approx(unit * (2 + 2 * 0.25**2 / 2))
    mixed = release(prefix=2, family="mixup")
    assert release_costs(mixed, "replace")[0] == pytest.approx(unit * 10 * 0.25**2)


def test_many_masks_at_once_cost_what_they_cost_one_by_one() -> None:
    rng = np.random.default_rng(0)
    groups = rng.dirichlet([2, 2, 2], size=50)
    groups[0] = [0, 0.5, 0.5]
    for placement in placements(clamp=False):
        base = replace(placement.release, prefix=1)
        if base.family == "full":
            continue
        at_once = release_costs(base, "replace", groups[:, 0], groups)
        one_by_one = [
            release_costs(
                replace(base, ratio=float(group[0]), ratios=tuple(map(float, group))), "replace"
            )
            for group in groups
        ]
        np.testing.assert_allclose(at_once, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
def test_without_a_bound_the_cost_is_infinite_and_without_an_upload_nothing(
    relation: Relation,
) -> None:
    for changes, infinite in (
        ({"clip": "none"}, [True, False]),
        ({"sigma_s": 0.0}, [True, False]),
        ({"sigma_y": 0.0}, [False, True]),
    ):
        noise = replace(NOISE, **changes)
        costs = release_costs(release(noise=noise), relation)
        assert np.isinf(costs).tolist() == infinite
        assert release_costs(release(noise=noise, ratio=0.0), relation).tolist() == [0, 0]


def test_a_release_is_counted_as_often_as_it_was_made() -> None:
    once, thrice = (release_costs(release(times=n), "replace") for n in (1, 3))
    np.testing.assert_allclose(thrice, 3 * once)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"family": "cutout"}, "family is 'cutout'; it must be one of full, mixup"),
        ({"family": "full"}, "ratio is 0.25; a release without mixing has ratio 1"),
        ({"seen": "both"}, "seen is 'both'; it must be one of alone, sum"),
        ({"seen": "sum"}, r"ratios is \(\)"),
        ({"seen": "sum", "ratios": (0.5, 0.5)}, "own 0.25 among them"),
        ({"seen": "sum", "ratios": (0.25, 0.9)}, "sum to at most 1"),
        ({"patches": 0}, "patches is 0"),
        ({"times": 1.0}, "times is 1.0"),
        ({"noise": None}, "noise is None"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        release(**wrong)


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(ValueError, match="relation is 'swap'; it must be one of replace, add"):
        release_costs(release(), "swap")  # type: ignore[arg-type]


def edges(least: float = 5e-324, most: float = 1.7e308) -> st.SearchStrategy[float]:
    """Numbers over all magnitudes that a float has, its edges among them."""
    exponents = st.integers(-323, 308).map(lambda power: float(f"1e{power}"))
    return st.one_of(exponents, st.floats(least, most)).filter(lambda x: least <= x <= most)


@given(
    sigmas=st.tuples(edges(), edges()),
    bound=edges(),
    ratio=edges(most=1.0),
    family=st.sampled_from(["full", "mixup", "cutmix"]),
    clip=st.sampled_from(["patch", "range", "sample"]),
    label_noise=st.sampled_from(["after", "before"]),
)
@settings(max_examples=400, deadline=None)
def test_no_number_that_a_server_may_send_is_priced_below_what_it_costs(
    sigmas: tuple[float, float],
    bound: float,
    ratio: float,
    family: Any,
    clip: Clip,
    label_noise: Any,
) -> None:
    """Against exact rational numbers; float32's resolution is the limit of any bound."""
    noise = GaussianNoise(
        sigma_s=sigmas[0], sigma_y=sigmas[1], clip=clip, clip_norm=bound, label_noise=label_noise
    )
    m = 1.0 if family == "full" else ratio
    release = Release(noise=noise, patches=4, width=2, family=family, ratio=m)
    smashed, labels = release_costs(release, "replace")
    exact_m, unit = Fraction(m), Fraction(bound) / Fraction(sigmas[0])
    squared = unit**2 * (2 if clip == "range" else 4)
    tokens = 1 if clip == "sample" else 4
    exact = {
        "full": tokens * squared / 2,
        "mixup": tokens * squared * exact_m**2 / 2,
        "cutmix": squared / 2 if clip == "sample" else 4 * exact_m * squared / 2,
    }[family]
    assert smashed >= below(exact)
    scale = exact_m**2 if label_noise == "after" else 1
    assert labels >= below(2 * scale / Fraction(sigmas[1]) ** 2 / 2)
    if sigmas[0] < RESOLUTION * bound:
        assert smashed == np.inf
    if sigmas[1] < RESOLUTION:
        assert labels == np.inf


def below(exact: Fraction) -> float:
    """Return a float that a rounded `exact` is not below, unless it is too small to count."""
    if exact > Fraction(1.7e308):
        return 1.7e308
    return max(0.0, float(exact) * (1 - 1e-12) - 1e-300)


def test_a_sigma_whose_square_is_zero_has_no_price() -> None:
    """Priced as sigma 1, labels and patches would go out as they are at epsilon 0.045."""
    noise = GaussianNoise(sigma_s=1e-170, sigma_y=1e-170)
    release = Release(noise=noise, patches=16, width=192, family="mixup", ratio=0.01)
    assert np.isinf(release_costs(release, "replace")).all()
    ledger = Ledger()
    ledger.charge(release)
    assert ledger.epsilon(1e-5) == np.inf


@pytest.mark.parametrize("bound", [1e-320, 1e-39, 1e39])
def test_a_bound_that_float32_has_not_is_no_bound(bound: float) -> None:
    release = Release(
        noise=GaussianNoise(sigma_s=bound, sigma_y=1.0, clip_norm=bound), patches=4, width=2
    )
    assert release_costs(release, "replace")[0] == np.inf
