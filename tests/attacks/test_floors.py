"""What is as good without what was sent: the floors of scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.release import Adversary, Origin, Release
from flwr_splitmix.attacks.scoring.floors import Floors, emptied
from flwr_splitmix.attacks.scoring.pairs import best_blind_images
from flwr_splitmix.attacks.scoring.scores import score_guess
from flwr_splitmix.mixers import FullShare, NoMixing, Plan, SmashedShape, each_alone
from tests.attacks.guesses import (
    Two,
    attack_on,
    floors,
    grey,
    guess_of,
    plain,
    truth_of,
)
from tests.attacks.victims import attacked


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
    informed = score_guess("images", guess_of(images + 0.1, where), truth, floors(public)).main
    assert informed.floor == blind.main.floor
    assert informed.beats_floor


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
    blind_images = best_blind_images(public, 2, 1, seed=0)
    assert blind_images.shape == (2, 1, 4, 4)
    assert sorted(blind_images.mean((1, 2, 3)).tolist()) == pytest.approx([0.2, 0.8], abs=0.02)


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
    """The first row's guess is no floor for any other class."""
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
    labels = {int(label) for release in view.releases for label in release.labels}  # type: ignore[union-attr]
    assert {int(label) for release in empty for label in release.labels} == labels  # type: ignore[union-attr]
    for release in empty:
        parts = (release.smashed, release.undone, release.loss, release.gradient)
        assert not any(bool(part.any()) for part in parts if part is not None)
        assert len(release.smashed) == len(first.smashed)
    soft = replace(first, labels=torch.full((len(first.smashed), 10), 0.1))
    releases = emptied(replace(view, releases=[soft, *view.releases[1:]]))
    assert len(releases) == len(view.releases)
    assert releases[0].labels is soft.labels
    assert releases[1].labels is view.releases[1].labels
