"""Collecting: which releases show one image, and what they add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.images.collect import Collect, near_enough
from flwr_splitmix.attacks.images.linking import Row, ids, link
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.mixers.frozen_edge import FrozenEdge
from tests.attacks.images.conftest import Bench, origin


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
    named = [
        torch.tensor([int(s) for s in origin(view, i).sources[:, 0]])
        for i in range(len(view.releases))
    ]
    view = replace(
        view,
        releases=[replace(r, labels=n) for r, n in zip(view.releases, named, strict=True)],
    )
    assert ids(view.releases) is not None
    groups = link(view, 2, None)
    assert len(groups) == 48
    assert all(len(group) == 2 and len(sources(view, group)) == 1 for group in groups)


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
