"""Scores against values that are known, floors, and the gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.catalogue import attack_named
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.floors import Floors, emptied
from flwr_splitmix.attacks.image_scores import retrieved, structures
from flwr_splitmix.attacks.intervals import curve_measures, mean_measure
from flwr_splitmix.attacks.pairs import best_blind_images
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Origin, Release
from flwr_splitmix.attacks.scores import Scored, score_guess
from flwr_splitmix.attacks.vault import Truth
from flwr_splitmix.mixers import FullShare, NoMixing, Plan, SmashedShape, each_alone
from tests.attacks.victims import attacked

LABELS = torch.tensor([0, 1, 0, 1])


def truth_of(images: Tensor, sources: Tensor, **more: Tensor) -> Truth:
    trained = torch.arange(len(images)) % 2 == 0
    origin = Origin(sources, tuple(range(sources.shape[1])), **more)
    return Truth(Pictures(images, LABELS[: len(images)]), trained, [origin])


def floors(images: Tensor | None = None) -> Floors:
    public = torch.rand(20, 1, 32, 32) if images is None else images
    return Floors(Pictures(public, torch.zeros(len(public), dtype=torch.int64)))


def rows_of(n: int) -> list[tuple[int, int]]:
    return [(0, row) for row in range(n)]


def guess_of(values: Tensor, where: list[tuple[int, int]] | None = None) -> Guess:
    return Guess(values, torch.ones(len(values)), where or rows_of(len(values)))


def test_errors_are_those_of_the_formulas() -> None:
    images = torch.full((2, 1, 32, 32), 0.5)
    scored = score_guess(
        "images", guess_of(images + 0.1), truth_of(images, torch.tensor([[0], [1]])), floors()
    )
    assert [row["mse"] for row in scored.rows] == pytest.approx([0.01, 0.01], rel=1e-5)
    assert [row["psnr"] for row in scored.rows] == pytest.approx([20, 20], rel=1e-5)
    assert [row["trained"] for row in scored.rows] == [True, False]
    assert scored.main.metric == "MSE"


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
    wanted = ((2 * mean(a) * mean(b) + 1e-4) * (2 * both + 9e-4)) / (
        (mean(a) ** 2 + mean(b) ** 2 + 1e-4) * (spread + 9e-4)
    )
    made, same = structures(one, other), structures(one, one)
    assert made is not None
    assert same is not None
    assert float(made) == pytest.approx(float(wanted.mean()), abs=1e-5)
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


def grey(levels: Tensor) -> Tensor:
    return levels[:, None, None, None].expand(-1, 1, 4, 4).clone()


def test_the_assignment_favours_blind_guesses_too_and_so_the_floor() -> None:
    """Two fixed images, one darker and one lighter, beat the mean image at every mixture."""
    levels = torch.rand(600, generator=torch.Generator().manual_seed(0))
    public, images = grey(levels[:400]), grey(levels[400:])
    origin = Origin(torch.arange(200).view(100, 2), (0, 1))
    pictures = Pictures(images, torch.zeros(200, dtype=torch.int64))
    truth = Truth(pictures, torch.zeros(200, dtype=torch.bool), [origin])
    where = [(0, row) for row in range(100) for _ in range(2)]
    pairs = levels[:400].view(200, 2).sort(1).values.mean(0)  # the darker and the lighter
    blind = score_guess("images", guess_of(grey(pairs.repeat(100)), where), truth, floors(public))
    assert blind.main.value < 0.9 * float((images - public.mean()).square().mean())
    assert blind.main.floor == pytest.approx(blind.main.value, rel=0.02)
    assert not blind.main.beats_floor
    told = score_guess("images", guess_of(images + 0.1, where), truth, floors(public)).main
    assert told.floor == blind.main.floor
    assert told.beats_floor


def test_the_attacks_own_images_for_an_empty_release_are_assigned_as_well() -> None:
    truth = truth_of(grey(torch.tensor([0.0, 1.0])), torch.tensor([[0, 1]]))
    guess = guess_of(grey(torch.tensor([0.5, 0.5])), [(0, 0), (0, 0)])
    prior = Floors(floors(grey(torch.full((9,), 0.5))).public, grey(torch.tensor([0.9, 0.1])))
    main = score_guess("images", guess, truth, prior).main
    assert main.floor == pytest.approx(0.01)


SHADES = grey(torch.tensor([0.1, 0.1, 0.5, 0.5, 0.9]))
SHADED = Pictures(SHADES, torch.tensor([0, 0, 1, 1, 2]))
"""Three classes of one grey each."""


def floor_of(labels: Tensor | None, levels: list[float], where: list[tuple[int, int]]) -> float:
    """Return the floor of one row with these labels, and of victims of these greys."""
    images = grey(torch.tensor(levels))
    truth = truth_of(images, torch.arange(len(levels))[None])
    guess = guess_of(grey(torch.full((len(where),), 0.5)), where)
    return score_guess("images", guess, truth, Floors(SHADED, labels=[labels])).main.floor


@pytest.mark.parametrize(
    ("labels", "levels", "guesses", "floor"),
    [
        (torch.tensor([2]), [0.9], 1, 0.0),
        (torch.tensor([2]), [0.8], 1, 0.01),
        (None, [0.9], 1, 0.48**2),  # the mean of all is 0.42
        (torch.tensor([[0.25, 0.0, 0.75]]), [0.7], 1, 0.0),  # a quarter of 0.1, the rest of 0.9
        (torch.tensor([[0.5, -0.2, 1.5]]), [0.7], 1, 0.0),  # with noise
        (torch.tensor([[0.25, 0.0, 0.75]]), [0.2, 0.9], 2, 0.005),  # one guess for each class
        (torch.tensor([[0.0, 0.0, 0.0, 1.0]]), [0.42], 1, 0.0),  # of that class nothing is known
    ],
)
def test_who_has_a_rows_label_guesses_the_mean_image_of_its_class(
    labels: Tensor | None, levels: list[float], guesses: int, floor: float
) -> None:
    assert floor_of(labels, levels, [(0, 0)] * guesses) == pytest.approx(floor, abs=1e-6)


def test_public_images_of_several_labels_are_of_each_of_their_classes() -> None:
    images = grey(torch.tensor([0.9]))
    public = Pictures(grey(torch.tensor([0.1, 0.9])), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    floors = Floors(public, labels=[torch.tensor([[0.0, 1.0]])])
    scored = score_guess("images", guess_of(images), truth_of(images, torch.tensor([[0]])), floors)
    assert scored.main.floor == pytest.approx(0)


def test_the_best_blind_images_of_groups_of_one_are_centres_of_clusters() -> None:
    public = grey(torch.tensor([0.1, 0.2, 0.3, 0.7, 0.8, 0.9]).repeat(20))
    made = best_blind_images(public, 2, 1, seed=0)
    assert made.shape == (2, 1, 4, 4)
    assert sorted(made.mean((1, 2, 3)).tolist()) == pytest.approx([0.2, 0.8], abs=0.02)


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
    told = curve_measures(-positive.astype(float), positive, either_way=True)[0]
    assert told.value == 1
    assert told.beats_floor


def test_the_interval_of_the_mean_covers_it_and_shrinks() -> None:
    rng = np.random.default_rng(0)
    few, many = (mean_measure("x", rng.normal(5, 1, n), 0.0) for n in (20, 2000))
    assert few.low < 5 < few.high
    assert many.high - many.low == pytest.approx(2 * 1.96 / math.sqrt(2000), rel=0.15)
    assert few.worst == pytest.approx(5 + 1.645, abs=0.8)


def attack_on(case: Case, name: str, *, trained: bool = True) -> Scored:
    budget = Budget("smoke", iterations=None if trained else 1)
    public = attacked().public(300)
    attack = attack_named(name)()
    attack.fit(case.view, public, budget)
    guess = attack.run(case.view)
    return score_guess(attack.goal, guess, case.truth, Floors.of(attack, case.view, public))


def plain(trained: int = 0) -> Case:
    return attacked("PSL").case("server", trained=trained, held_out=64, assume=["lower"])


def test_linear_reads_plain_split_learning_exactly_and_passes_the_gate() -> None:
    scored = attack_on(plain(), "linear")
    assert scored.main.value < 1e-6
    assert scored.main.beats_floor


def test_a_decoder_that_is_not_trained_fails_the_gate() -> None:
    assert not attack_on(plain(), "decoder", trained=False).main.beats_floor


@dataclass(frozen=True, kw_only=True)
class NoiseShare(FullShare):
    """Noise of the shape of smashed data, whatever they are."""

    name: ClassVar[str] = "only-noise"

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(smashed)
        return noise, noise


class Sham(NoMixing):
    """A method that sends noise."""

    def plan(self, members, shape: SmashedShape, rng, order_rng=None) -> Plan:  # type: ignore[no-untyped-def]
        return each_alone(shape, ((client, NoiseShare()) for client in members))


@pytest.mark.parametrize("name", ["linear", "decoder", "decoder-transformer"])
def test_what_is_read_from_noise_is_the_floor(name: str) -> None:
    system = attacked("PSL")
    sham = replace(system, knowledge=replace(system.knowledge, mixer=Sham()))
    case = sham.case("server", trained=0, held_out=64, assume=["lower"])
    assert not attack_on(case, name).main.beats_floor


class Two(Attack):
    """Guesses a grey that its setting says."""

    name, goal = "two", "images"
    settings: ClassVar[tuple[Mapping[str, float], ...]] = ({"grey": 0.9}, {"grey": 0.3})

    def run(self, view: View) -> Guess:
        grey = torch.full((1, 32, 32), self.setting["grey"])
        places = [(i, j) for i, r in enumerate(view.releases) for j in range(len(r.smashed))]
        return guess_of(grey.expand(len(places), -1, -1, -1), places)


def test_the_setting_is_chosen_on_public_images() -> None:
    view = plain().view
    dark = Pictures(torch.full((20, 1, 32, 32), 0.25), torch.zeros(20, dtype=torch.int64))
    light = Pictures(torch.full((20, 1, 32, 32), 0.8), torch.zeros(20, dtype=torch.int64))
    assert Two.tune(view, dark).setting == {"grey": 0.3}
    assert Two.tune(view, light).setting == {"grey": 0.9}


def test_a_budget_ends_loops_and_gives_one_step_at_least() -> None:
    said: list[tuple[str, int, int]] = []
    budget = Budget(iterations=3, progress=lambda *what: said.append(what))
    assert list(budget.steps(10, "fitting")) == [0, 1, 2]
    assert said[-1] == ("fitting", 3, 3)
    budget.stop.set()
    assert list(budget.steps(10)) == [0]
    assert list(Budget(seconds=0.0).steps(10)) == [0]


def test_a_release_of_zeros_says_nothing() -> None:
    view = plain().view
    floors = Floors.of(Two(grey=0.3), view, attacked().public(20))
    assert floors.prior is not None
    assert floors.prior.shape == (1, 1, 32, 32)
    assert float(floors.prior.mean()) == pytest.approx(0.3)
    assert isinstance(view.releases[0], Release)


class Named(Two):
    """Guesses a grey that the row's label says, or the mean of a soft label."""

    name = "named"

    def run(self, view: View) -> Guess:
        labels = torch.cat([r.labels for r in view.releases if r.labels is not None])
        if labels.dim() == 2:
            labels = labels @ torch.arange(10.0)
        places = [(i, j) for i, r in enumerate(view.releases) for j in range(len(r.smashed))]
        return guess_of((labels / 10)[:, None, None, None].expand(-1, 1, 32, 32), places)


def test_what_an_attack_makes_of_labels_alone_is_a_floor_for_each_label() -> None:
    case = attacked("PatchShuffleSL").case("server", trained=0, held_out=64)
    public = attacked("PatchShuffleSL").public(20)
    attack = Named()
    floors = Floors.of(attack, case.view, public)
    assert len(floors.prior_at) == sum(len(release.smashed) for release in case.view.releases)
    scored = score_guess("images", attack.run(case.view), case.truth, floors)
    assert [row["prior_mse"] for row in scored.rows] == [row["mse"] for row in scored.rows]
    assert not scored.main.beats_floor


@pytest.mark.parametrize("adversary", ["server", "upper only"])
def test_a_row_with_a_soft_label_has_a_floor_of_its_own(adversary: Adversary) -> None:
    """The first row's guess used to stand for all, and was no floor for any other class."""
    case = attacked("DPCutMixSL").case(adversary, trained=0, held_out=32)
    attack = Named()
    floors = Floors.of(attack, case.view, attacked("DPCutMixSL").public(20))
    scored = score_guess("images", attack.run(case.view), case.truth, floors)
    assert [row["prior_mse"] for row in scored.rows] == [row["mse"] for row in scored.rows]
    assert not scored.main.beats_floor


def test_an_empty_release_keeps_labels_and_nothing_that_was_sent() -> None:
    view = plain(8).view
    first = view.releases[0]
    full = replace(
        first, undone=first.smashed, loss=torch.ones(8), gradient=torch.ones_like(first.smashed)
    )
    empty = emptied(replace(view, releases=[full, *view.releases[1:]]))
    said = {int(label) for release in view.releases for label in release.labels}  # type: ignore[union-attr]
    assert {int(label) for release in empty for label in release.labels} == said  # type: ignore[union-attr]
    for release in empty:
        parts = (release.smashed, release.undone, release.loss, release.gradient)
        assert not any(bool(part.any()) for part in parts if part is not None)
        assert len(release.smashed) == len(first.smashed)
    soft = replace(first, labels=torch.full((len(first.smashed), 10), 0.1))
    kept = emptied(replace(view, releases=[soft, *view.releases[1:]]))
    assert len(kept) == len(view.releases)
    assert kept[0].labels is soft.labels
    assert kept[1].labels is view.releases[1].labels
