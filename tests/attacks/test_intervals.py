"""Intervals cover the mean as often as they say, however samples depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, bootstrap, ttest_1samp
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from flwr_splitmix.attacks.base import Goal, Guess
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.intervals import (
    RATES,
    batch_curve_measure,
    curve_measures,
    mean_measure,
)
from flwr_splitmix.attacks.scoring.scores import score_guess

PUBLIC = Floors(Pictures(torch.full((20, 1, 16, 16), 0.25), torch.zeros(20, dtype=torch.int64)))


@pytest.mark.parametrize("number", [30, 200])
def test_a_group_for_each_of_many_samples_is_scipys_bootstrap(number: int) -> None:
    values = np.random.default_rng(number).random(number)
    ends = bootstrap(
        (values,), np.mean, n_resamples=1000, method="percentile", rng=np.random.default_rng(7)
    ).confidence_interval
    measure = mean_measure("x", values, 0.0, seed=7)
    assert (measure.low, measure.high) == (ends.low, ends.high)
    named = mean_measure("x", values, 0.0, within=[[f"v{i}" for i in range(number)]], seed=7)
    assert named == measure
    assert (measure.samples, measure.groups) == (number, number)


@pytest.mark.parametrize("groups", [8, 40])
def test_groups_of_samples_that_are_alike_are_covered(groups: int) -> None:
    covered = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        group_means = rng.normal(size=groups)
        samples = np.repeat(group_means, 8) + 0.1 * rng.normal(size=8 * groups)
        names = np.repeat(np.arange(groups), 8).tolist()
        measure = mean_measure("x", samples, 0.0, within=[names], seed=seed)
        assert (measure.samples, measure.groups) == (8 * groups, groups)
        covered.append(measure.low <= 0 <= measure.high)
    assert np.mean(covered) >= 0.88


def test_few_groups_have_students_interval() -> None:
    """The plain percentiles of eight values would be a fifth narrower."""
    ratios = []
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=8)
        measure = mean_measure("x", values, 0.0, seed=seed)
        ends = ttest_1samp(values, 0).confidence_interval(0.95)
        ratios.append((measure.high - measure.low) / (ends.high - ends.low))
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_of_several_groupings_the_widest_interval_counts() -> None:
    samples = np.random.default_rng(0).normal(size=80)
    names = np.repeat(np.arange(40), 2).tolist()
    alone = mean_measure("x", samples, 0.0)
    paired = mean_measure("x", samples, 0.0, within=[names])
    both = mean_measure("x", samples, 0.0, within=[range(80), names])
    assert both.low == min(alone.low, paired.low)
    assert both.high == max(alone.high, paired.high)
    assert both.groups == 40


def test_many_releases_of_an_image_are_one_group_and_so_is_a_guess_at_several_images() -> None:
    images = torch.rand(20, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    trained = torch.ones(20, dtype=torch.bool)
    pictures = Pictures(images, torch.zeros(20, dtype=torch.int64))

    def groups(sources: torch.Tensor, times: int) -> tuple[int, int]:
        truth = Truth(pictures, trained, [Origin(sources, tuple(range(sources.shape[1])))] * times)
        where = [(release, row) for release in range(times) for row in range(len(sources))]
        guess = Guess(torch.rand(len(where), 1, 16, 16), torch.ones(len(where)), where)
        main = score_guess("images", guess, truth, PUBLIC).main
        return main.samples, main.groups

    assert groups(torch.arange(20)[:, None], 8) == (160, 20)
    assert groups(torch.arange(20).view(10, 2), 1) == (20, 10)


def test_scores_that_are_not_finite_have_no_curve() -> None:
    with pytest.raises(ValueError, match="finite"):
        curve_measures(np.array([0.0, np.nan, 1.0]), np.array([True, False, True]))


@pytest.mark.parametrize(("negatives", "rates"), [(999, 0), (1000, 1), (9999, 1), (10_000, 2)])
def test_a_rate_that_allows_few_false_positives_is_left_out(negatives: int, rates: int) -> None:
    """With one allowed of 100, noise reaches 2 % on average at "1 %"."""
    positive = np.arange(negatives + 100) < 100
    scores = np.random.default_rng(0).normal(size=len(positive))
    measures = curve_measures(scores, positive)
    assert [measure.metric for measure in measures] == ["AUC", *RATES][: 1 + rates]


def test_of_many_releases_of_a_few_victims_no_rate_is_made() -> None:
    victims = np.repeat(np.arange(200), 10)
    scores = np.random.default_rng(0).normal(size=2000)
    measures = curve_measures(scores, victims < 100, groups=victims.tolist())
    assert [measure.metric for measure in measures] == ["AUC"]


def test_the_floor_of_a_rate_is_what_noise_reaches() -> None:
    """Noise puts a positive into each of the gaps between negatives equally often."""
    scores = np.r_[np.arange(1001) - 0.5, np.arange(1000)]
    _, rate = curve_measures(scores, np.arange(2001) < 1001)
    assert rate.value == rate.floor == 11 / 1001


def test_members_and_labels_are_resampled_by_victim() -> None:
    scores = np.repeat(np.random.default_rng(0).normal(size=40), 8)
    victims = np.repeat(np.arange(40), 8)
    positive = victims < 20
    alone, *_ = curve_measures(scores, positive)
    grouped, *_ = curve_measures(scores, positive, groups=victims.tolist())
    assert grouped.value == alone.value
    assert (grouped.samples, grouped.groups) == (320, 40)
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)
    pictures = Pictures(torch.zeros(40, 1, 2, 2), torch.tensor([0, 1]).repeat(20))
    truth = Truth(pictures, torch.arange(40) < 20, [Origin(torch.arange(40)[:, None], (0,))] * 3)
    where = [(release, row) for release in range(3) for row in range(40)]
    guesses: dict[Goal, Tensor] = {
        "membership": torch.rand(120),
        "labels": torch.zeros(120).long(),
    }
    for goal, values in guesses.items():
        guess = Guess(values, torch.ones(120), where)
        assert score_guess(goal, guess, truth, PUBLIC).main.groups == 40


@pytest.mark.parametrize("number", [1, 2, 5])
def test_too_few_groups_decide_nothing(number: int) -> None:
    assert not mean_measure("x", np.ones(number), 0.5, share=True).beats_floor
    error = mean_measure("x", np.full(number, 0.05), 0.06, lower_is_stronger=True)
    assert not error.beats_floor
    assert error.high == 0.06
    many = mean_measure(
        "x", np.ones(number * 50), 0.5, within=[[i % number for i in range(number * 50)]]
    )
    assert not many.beats_floor
    positive = np.arange(2 * number) < number
    assert not curve_measures(positive.astype(float), positive)[0].beats_floor


def test_outcomes_that_are_all_alike_have_the_interval_of_clopper_and_pearson() -> None:
    right = mean_measure("x", np.ones(20), 0.5, share=True)
    assert [right.low, right.high] == pytest.approx([0.025 ** (1 / 20), 1])
    assert right.beats_floor
    wrong = mean_measure("x", np.zeros(20), 0.5, share=True)
    assert [wrong.low, wrong.high] == pytest.approx([0, 1 - 0.025 ** (1 / 20)])
    assert not mean_measure("x", np.ones(20), 0.9, share=True).beats_floor


@pytest.mark.parametrize("groups", [6, 12, 40])
def test_groups_that_have_all_the_same_share_have_an_interval(groups: int) -> None:
    halves, names = np.tile([0.0, 1.0], groups), np.repeat(np.arange(groups), 2).tolist()
    measure = mean_measure("x", halves, 0.4, share=True, within=[names])
    exact = binomtest(groups // 2, groups).proportion_ci(0.95)
    assert [measure.low, measure.high] == pytest.approx([exact.low, exact.high])
    assert not measure.beats_floor
    thirds = np.tile([0.1, 0.2, 0.6, 0.6, 0.2, 0.1], groups)  # sums that differ by rounding
    uneven = mean_measure(
        "x", thirds, 0.0, share=True, within=[np.repeat(range(2 * groups), 3).tolist()]
    )
    assert uneven.high - uneven.low > 0.2 / groups**0.5
    error = mean_measure("x", halves, 0.4, lower_is_stronger=True, within=[names])
    assert (error.low, error.high) == (0.5, 0.5)


def test_exact_reconstructions_of_many_victims_pass() -> None:
    exact = mean_measure("MSE", np.full(64, 1e-17), 0.066, lower_is_stronger=True)
    assert (exact.low, exact.high) == (1e-17, 1e-17)
    assert exact.beats_floor


@pytest.mark.parametrize("number", [4, 6, 8, 12, 40])
def test_coins_pass_as_seldom_as_intervals_say(number: int) -> None:
    coins = [np.random.default_rng(seed).random(number) < 0.5 for seed in range(600)]
    passed = [mean_measure("x", tosses, 0.5, share=True).beats_floor for tosses in coins]
    assert np.mean(passed) <= 0.025 + 0.0125  # two standard errors


@pytest.mark.parametrize("decimals", [0, 1, 9])  # many scores alike, some, none
def test_a_curve_is_that_of_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(0)
    positive = rng.random(12_000) < 0.1
    scores = np.round(rng.normal(size=12_000) + positive, decimals)
    area, *rates = curve_measures(scores, positive)
    assert area.value == pytest.approx(roc_auc_score(positive, scores), rel=1e-12)
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    for rate, limit in zip(rates, (0.01, 0.001), strict=True):
        assert rate.value == pytest.approx(true[false <= limit].max(), rel=1e-12)


def test_an_auc_by_batch_is_the_mean_of_each_batchs_own_side() -> None:
    rng = np.random.default_rng(0)
    positive = rng.random(240) < 0.4
    scores, batches = np.round(rng.normal(size=240), 1), np.repeat(np.arange(12), 20)
    scores += positive * np.where(batches % 2, 1, -1)  # pooled, the sides cancel out
    each = [roc_auc_score(positive[batches == b], scores[batches == b]) for b in range(12)]
    measure = batch_curve_measure(scores, positive, batches.tolist())
    assert measure is not None
    assert measure.value == pytest.approx(np.mean(np.maximum(each, 1 - np.array(each))), rel=1e-12)
    assert (measure.metric, measure.samples, measure.groups) == ("AUC by batch", 12, 12)
    assert not measure.main
    assert measure.beats_floor
    assert curve_measures(scores, positive, either_way=True)[0].value < 0.6


def test_a_batch_of_one_class_has_no_auc() -> None:
    scores, batches = np.arange(6.0), [0, 0, 1, 1, 2, 2]
    one = batch_curve_measure(scores, np.array([1, 1, 0, 1, 0, 0], bool), batches)
    assert one is not None
    assert (one.value, one.samples) == (1.0, 1)
    assert batch_curve_measure(scores, np.array([1, 1, 0, 0, 1, 1], bool), batches) is None


def test_chance_of_an_auc_by_batch_is_above_a_half() -> None:
    """Noise is at the floor, about 0.58 for 32 rows, and passes as seldom as intervals say."""
    passed, batches = [], np.repeat(np.arange(15), 32).tolist()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        measure = batch_curve_measure(rng.normal(size=480), rng.random(480) < 0.5, batches)
        assert measure is not None
        assert measure.floor == pytest.approx(0.583, abs=0.005)
        passed.append(measure.beats_floor)
    assert np.mean(passed) <= 0.025 + 0.022  # two standard errors


def test_scores_of_labels_are_measured_as_one_curve_of_victims_and_by_release() -> None:
    labels = torch.tensor([0, 4]).repeat(20)
    pictures = Pictures(torch.zeros(40, 1, 2, 2), labels)
    rows = torch.arange(40)[:, None]
    origins = [Origin(rows[i : i + 10], (0,)) for i in (*range(0, 40, 10), *range(0, 40, 10))]
    truth = Truth(pictures, torch.ones(40, dtype=torch.bool), origins)
    where = [(release, row) for release in range(8) for row in range(10)]
    guess = Guess(torch.rand(80), torch.ones(80), where)
    curve, by_batch = score_guess("labels", guess, truth, PUBLIC).measures
    assert (curve.metric, curve.samples, curve.groups) == ("AUC", 80, 40)
    assert (by_batch.metric, by_batch.samples, by_batch.groups) == ("AUC by batch", 8, 8)


@pytest.mark.parametrize("of", ["mean", "curve"])
def test_ends_are_those_of_very_many_resamples(of: str) -> None:
    """Ends of few resamples would vary from seed to seed."""
    rng = np.random.default_rng(0)
    values, positive = rng.normal(size=200), np.arange(200) < 100
    lows = [
        mean_measure("x", values, 0.0, seed=seed).low
        if of == "mean"
        else curve_measures(values, positive, seed=seed)[0].low
        for seed in range(30)
    ]
    spread = np.std(values) / np.sqrt(200) if of == "mean" else 0.041  # of one resample
    assert np.std(lows) < 0.25 * spread


def test_an_auc_pays_for_the_choice_of_its_side() -> None:
    positive, widths = np.arange(60) < 30, []
    for seed in range(10):
        scores = np.random.default_rng(seed).normal(size=60)
        widths.append(
            [
                area.high - area.low
                for area in (
                    curve_measures(scores, positive)[0],
                    curve_measures(scores, positive, either_way=True)[0],
                )
            ]
        )
    fixed, chosen = np.mean(widths, axis=0)
    assert chosen / fixed == pytest.approx(2.24 / 1.96, abs=0.1)  # 97.5 % beside 95 %
