"""An attack on the real mechanism never beats the accountant, and does beat a wrong bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.privacy.costs import release_costs
from tests.privacy.gaussian import attacked_epsilon, exact_epsilon
from tests.privacy.placements import CLASSES, Placement, placements, worst_pair

DELTA, DRAWS = 0.05, 20_000


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0])


def shifted(placement: Placement, smashed: float, labels: float) -> Placement:
    """Return the placement with noise for mean shifts of so many standard deviations."""
    rho = release_costs(placement.release, "replace")
    sigma_s, sigma_y = np.sqrt(2 * rho) / (smashed, labels)
    noise = replace(placement.noise, sigma_s=float(sigma_s), sigma_y=float(sigma_y))
    return replace(placement, noise=noise)


def attack(placement: Placement, *, labels_only: bool = False, seed: int = 0) -> float:
    """Tell the worst pair apart by the best linear score of what is seen."""
    generator = torch.Generator().manual_seed(seed)
    pair = worst_pair()
    first, second, first_again, second_again = (
        placement.draw(*record, DRAWS, generator) for record in (*pair, *pair)
    )
    towards = (first.mean(axis=0) - second.mean(axis=0)) / first.var(axis=0).clip(1e-12)
    if labels_only:
        towards[:-CLASSES] = 0
    every = (first, second, first_again, second_again)
    return attacked_epsilon([draws @ towards for draws in every], DELTA)


@pytest.mark.parametrize("clamp", [True, False], ids=["clamped", "plain"])
def test_no_attack_shows_more_than_the_accountant_grants(clamp: bool) -> None:
    shown = {}
    for index, placement in enumerate(placements(clamp=clamp)):
        noised = shifted(placement, 1.0, 1.0)
        granted = epsilon(float(release_costs(noised.release, "replace").sum()))
        shown[str(placement)] = (attack(noised, seed=index), granted)
    assert not {name: pair for name, pair in shown.items() if pair[0] > pair[1]}
    if not clamp:
        # The attack is near the best one there is: what it shows is no accident of a weak attack.
        best = exact_epsilon(DELTA, np.sqrt(2.0))
        assert min(pair[0] for pair in shown.values()) > 0.6 * best


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("clamp", [True, False], ids=["clamped", "plain"])
def test_it_beats_the_papers_label_term_where_noise_is_scaled_with_the_label(
    k: int, clamp: bool
) -> None:
    noise = GaussianNoise(sigma_s=1, sigma_y=1, label_noise="before", clamp_labels=clamp)
    noised = shifted(Placement("cutmix", noise, "alone", k), 1.0, 1.8)
    granted = float(release_costs(noised.release, "replace")[1])
    shown = attack(noised, labels_only=True, seed=k)
    assert epsilon(granted / k**2) < shown < epsilon(granted)


def test_the_sum_of_clamped_labels_is_not_hidden_by_the_others() -> None:
    """The sum of the first class is 0 only if all members' labels were clamped to 0 there.

    With k = 2 that has probability 1/4 if the class is not the record's, and 1/2 Phi(-4) if it is,
    the noise being a quarter of the ratio. It shows more than the sum of plain labels would.
    """
    sigma_y = 0.5 / 4
    noise = GaussianNoise(sigma_s=1, sigma_y=sigma_y, clamp_labels=True)
    placement = Placement("cutmix", noise, "sum", 2)
    (_, present), (record, absent) = worst_pair()
    generator = torch.Generator().manual_seed(0)
    zero = placement.draw(record, absent, DRAWS, generator)[:, -CLASSES] == 0
    assert zero.mean() == pytest.approx(0.25, abs=0.01)
    assert (placement.draw(record, present, DRAWS, generator)[:, -CLASSES] == 0).mean() < 1e-3
    shown = float(np.log((0.25 - DELTA) / (0.5 * 3.167e-5)))  # Phi(-4) = 3.167e-5
    plain = replace(placement, noise=replace(noise, clamp_labels=False))
    as_plain = epsilon(float(release_costs(plain.release, "add-remove")[1]))
    granted = epsilon(float(release_costs(placement.release, "add-remove")[1]))
    assert as_plain < shown < granted
