"""Collecting: which releases show one image, and what they add up to."""

from __future__ import annotations

import pytest

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.images.collect import Collect, near_enough
from flwr_splitmix.attacks.images.collecting.linking import Row, link
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.frozen_edge import FrozenEdge
from tests.attacks.images.conftest import Bench, origin
from tests.attacks.victims import attacked


def sources(view: View, group: list[Row]) -> set[int]:
    return {int(origin(view, place).sources[row, 0]) for place, row in group}


def test_rows_that_show_one_image_are_linked_by_what_both_hold(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), times=6)
    groups = link(view, 30, near_enough(view, bench.public, 0))
    pure = sum(len(sources(view, group)) == 1 for group in groups)
    assert pure > 0.95 * len(groups)
    assert sum(map(len, groups)) == sum(len(r.smashed) for r in view.releases)
    # A client has an image in half of the epochs here; two masks may have nothing in common.
    assert sum(len(group) > 1 for group in groups) > 40


def test_ids_link_what_a_frozen_edge_sends(bench: Bench) -> None:
    view = bench.view(FrozenEdge(), times=3)
    groups = link(view, 2, None)
    assert len(groups) == 48
    assert all(len(group) == 2 and len(sources(view, group)) == 1 for group in groups)


@pytest.mark.parametrize("adversary", ["server", "eavesdropper"])
def test_ids_of_a_real_run_link_releases_of_one_image(adversary: Adversary) -> None:
    case = attacked("BatchShuffleSL").case(adversary, trained=16, held_out=8, repeats=3)
    groups = link(case.view, 30, None)
    shown = [
        {
            (case.view.releases[place].client, int(case.truth.origins[place].sources[row, 0]))
            for place, row in group
        }
        for group in groups
    ]
    assert all(len(images) == 1 for images in shown)
    assert len(set.union(*shown)) == len(groups)
    assert max(map(len, groups)) > 1


def test_collected_masks_give_more_away_than_one_release(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collect, "epochs", {"smoke": 8})
    errors = []
    for times in (1, 6):
        view = bench.view(PatchCutMix(2), times=times)
        attack = Collect(lr=1e-2)
        errors.append(bench.error(bench.attack(attack, view), view))
    assert max(attack.collected) > 2
    assert errors[1] < errors[0]


def test_images_whose_patches_were_all_sent_at_some_time_are_read_exactly(bench: Bench) -> None:
    """A decoder alone reads them with an error that hides how much is sent over time."""
    view = bench.view(PatchCutMix(2), times=12)
    attack = Collect()
    guess = bench.attack(attack, view)
    errors = [
        float((value - bench.victims.images[origin(view, place).sources[row, 0]]).square().mean())
        for value, (place, row) in zip(guess.values, guess.where, strict=True)
    ]
    often = [e for e, times in zip(errors, attack.collected, strict=True) if times >= 3]
    assert len(often) > 20
    # The others have patches that none of these few releases held.
    assert sorted(often)[len(often) // 10] < 1e-9
    assert bench.error(guess, view) < 0.6 * bench.floor
