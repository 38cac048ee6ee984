"""Scores against values that are known, and the gate."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.scoring.image_scores import retrieved, structures
from flwr_splitmix.attacks.scoring.intervals import curve_measures, mean_measure
from flwr_splitmix.attacks.scoring.scores import score_guess
from tests.attacks.guesses import (
    Two,
    attack_on,
    floors,
    guess_of,
    plain,
    truth_of,
)


def test_errors_are_those_of_the_formulas() -> None:
    images = torch.full((2, 1, 32, 32), 0.5)
    scored = score_guess(
        "images", guess_of(images + 0.1), truth_of(images, torch.tensor([[0], [1]])), floors()
    )
    assert [row["mse"] for row in scored.rows] == pytest.approx([0.01, 0.01], rel=1e-5)
    assert [row["psnr"] for row in scored.rows] == pytest.approx([20, 20], rel=1e-5)
    assert [row["trained"] for row in scored.rows] == [True, False]
    assert scored.main.metric == "MSE"


def test_columns_keep_their_order_in_files_of_samples() -> None:
    images = torch.full((2, 1, 32, 32), 0.5)
    truth = truth_of(images, torch.tensor([[0], [1]]))
    scored = score_guess("images", guess_of(images + 0.1), truth, floors())
    names = list(scored.rows[0])
    first = names.index("mse")
    assert names[first : first + 4] == ["mse", "psnr", "retrieved", "nearest_public_mse"]
    assert names[-1] in ("ssim", "lpips")


def test_structure_is_that_of_its_definition() -> None:
    """Computed once more window by window, of windows within the image."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.rand(1, 2, 14, 12, generator=generator) for _ in range(2))
    x = torch.arange(11.0) - 5
    window = torch.exp(-(x[:, None] ** 2 + x[None] ** 2) / (2 * 1.5**2))
    window = window / window.sum()

    def windows(image: Tensor) -> Tensor:
        return image[0].unfold(1, 11, 1).unfold(2, 11, 1)

    def mean(values: Tensor) -> Tensor:
        return (window * values).sum((-2, -1))

    a, b = windows(one), windows(other)
    both = mean(a * b) - mean(a) * mean(b)
    spread = mean(a * a) - mean(a) ** 2 + mean(b * b) - mean(b) ** 2
    expected = ((2 * mean(a) * mean(b) + 1e-4) * (2 * both + 9e-4)) / (
        (mean(a) ** 2 + mean(b) ** 2 + 1e-4) * (spread + 9e-4)
    )
    similarity, same = structures(one, other), structures(one, one)
    assert similarity is not None
    assert same is not None
    assert float(similarity) == pytest.approx(float(expected.mean()), abs=1e-5)
    assert float(same) == pytest.approx(1)


def test_images_too_small_for_a_window_have_no_structure() -> None:
    images, public = torch.rand(2, 1, 10, 16), torch.rand(9, 1, 10, 16)
    assert structures(images, images) is None
    truth = truth_of(images, torch.tensor([[0], [1]]))
    scored = score_guess("images", guess_of(images + 0.1), truth, floors(public))
    assert "SSIM" not in {measure.metric for measure in scored.measures}
    assert "ssim" not in scored.rows[0]


def test_a_victim_is_retrieved_where_it_is_nearest() -> None:
    images = torch.zeros(2, 1, 4, 4)
    guesses = torch.stack([images[0] + 0.1, images[1] + 0.9])
    assert retrieved(guesses, images, torch.ones(5, 1, 4, 4)).tolist() == [True, False]


def test_several_guesses_at_a_mixture_are_assigned_to_the_images_that_they_fit() -> None:
    images = torch.stack([torch.zeros(1, 32, 32), torch.ones(1, 32, 32)])
    guess = guess_of(torch.stack([images[1] * 0.9, images[0] + 0.1]), [(0, 0), (0, 0)])
    scored = score_guess("images", guess, truth_of(images, torch.tensor([[0, 1]])), floors())
    assert [row["mse"] for row in scored.rows] == pytest.approx([0.01, 0.01], rel=1e-4)
    alone = guess_of(torch.full((1, 1, 32, 32), 0.5))
    both = score_guess("images", alone, truth_of(images, torch.tensor([[0, 1]])), floors())
    assert [row["mse"] for row in both.rows] == pytest.approx([0.25, 0.25])


def test_the_order_is_right_where_each_patch_is() -> None:
    order = torch.tensor([[2, 0, 1, 3]])
    truth = truth_of(torch.zeros(1, 1, 32, 32), torch.tensor([[0]]), order=order)
    assert score_guess("order", guess_of(order), truth, floors()).main.value == 1
    half = guess_of(torch.tensor([[2, 0, 3, 1]]))
    scored = score_guess("order", half, truth, floors())
    assert (scored.main.value, scored.main.floor) == (0.5, 0.25)


def test_owners_have_no_names() -> None:
    owners = torch.tensor([[7, 7, 3, 3, 3, -1]])
    truth = truth_of(torch.zeros(2, 1, 32, 32), torch.tensor([[0, 1]]), owners=owners)
    scored = score_guess("owners", guess_of(torch.tensor([[1, 1, 0, 0, 0, 0]])), truth, floors())
    assert scored.main.value == 1
    assert scored.main.floor >= 0.6


def test_labels_and_membership() -> None:
    truth = truth_of(torch.zeros(4, 1, 32, 32), torch.arange(4)[:, None])
    read = score_guess("labels", guess_of(torch.tensor([0, 1, 0, 0])), truth, floors())
    assert (read.main.value, read.main.floor) == (0.75, 0.5)
    sides = score_guess("labels", guess_of(torch.tensor([0.9, 0.1, 0.8, 0.2])), truth, floors())
    assert sides.main.value == 1  # which side is which is not told
    member = guess_of(torch.tensor([0.9, 0.1, 0.8, 0.2]))
    assert score_guess("membership", member, truth, floors()).main.value == 1


def test_rates_at_low_false_positive_rates() -> None:
    scores = np.r_[np.full(50, 2.0), np.zeros(50), np.ones(10_000)]
    members = np.arange(10_100) < 100
    area, one_percent, thousandth = curve_measures(scores, members)
    assert (one_percent.value, thousandth.value) == (0.5, 0.5)
    assert area.value == pytest.approx(0.5)
    with pytest.raises(ValueError, match="both classes"):
        curve_measures(scores, np.ones(10_100, bool))


def test_either_way_an_attack_at_chance_does_not_beat_its_floor() -> None:
    positive = np.arange(60) < 30
    drawn = [
        curve_measures(np.random.default_rng(seed).normal(size=60), positive, either_way=True)[0]
        for seed in range(20)
    ]
    assert all(area.value >= 0.5 and area.low < area.value < area.high for area in drawn)
    assert sum(area.beats_floor for area in drawn) <= 1
    perfect = curve_measures(-positive.astype(float), positive, either_way=True)[0]
    assert perfect.value == 1
    assert perfect.beats_floor


def test_the_interval_of_the_mean_covers_it_and_shrinks() -> None:
    rng = np.random.default_rng(0)
    few, many = (mean_measure("x", rng.normal(5, 1, n), 0.0) for n in (20, 2000))
    assert few.low < 5 < few.high
    assert many.high - many.low == pytest.approx(2 * 1.96 / math.sqrt(2000), rel=0.15)
    assert few.worst == pytest.approx(5 + 1.645, abs=0.8)


def test_linear_reads_plain_split_learning_exactly_and_passes_the_gate() -> None:
    scored = attack_on(plain(), "linear")
    assert scored.main.value < 1e-6
    assert scored.main.beats_floor


def test_a_decoder_that_is_not_trained_fails_the_gate() -> None:
    assert not attack_on(plain(), "decoder", trained=False).main.beats_floor


def test_the_setting_is_chosen_on_public_images() -> None:
    view = plain().view
    dark = Pictures(torch.full((20, 1, 32, 32), 0.25), torch.zeros(20, dtype=torch.int64))
    light = Pictures(torch.full((20, 1, 32, 32), 0.8), torch.zeros(20, dtype=torch.int64))
    assert Two.tune(view, dark).setting == {"grey": 0.3}
    assert Two.tune(view, light).setting == {"grey": 0.9}


def test_a_budget_ends_loops_and_gives_one_step_at_least() -> None:
    reports: list[tuple[str, int, int]] = []
    budget = Budget(iterations=3, progress=lambda *report: reports.append(report))
    assert list(budget.steps(10, "fitting")) == [0, 1, 2]
    assert reports[-1] == ("fitting", 3, 3)
    budget.stop.set()
    assert list(budget.steps(10)) == [0]
    assert list(Budget(seconds=0.0).steps(10)) == [0]


def test_what_the_documentation_imports_is_at_the_top_and_recording_needs_no_scipy() -> None:
    program = (
        "import sys; from flwr_splitmix.attacks import Attacked, Recorder; "
        "assert 'scipy' not in sys.modules; from flwr_splitmix.attacks import measure_leak"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
