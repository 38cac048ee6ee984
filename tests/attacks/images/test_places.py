"""Attacks on order and owners: where a patch belongs, and whose it is."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.attribute import Attribute
from flwr_splitmix.attacks.images.jigsaw import Jigsaw
from flwr_splitmix.attacks.images.painting import painter
from flwr_splitmix.attacks.images.reorder import Reorder
from flwr_splitmix.mixers import FrozenEdge, Mixup, NoMixing, PatchCutMix, Shuffled
from tests.attacks.images.conftest import PATCHES, Bench, Embedding, Noise, origin
from tests.attacks.images.test_unshuffle import batch_edge


def in_place(guess: Guess, view: View) -> float:
    """Return the part of tokens that are given their place."""
    right = []
    for value, (place, row) in zip(guess.values, guess.where, strict=True):
        order = origin(view, place).order
        assert order is not None
        right.append((value == order[row] % PATCHES).double().mean())
    return float(torch.stack(right).mean())


def owned(guess: Guess, view: View) -> float:
    """Return the part of patches given to the right one of two, by the better numbering."""
    right = []
    for value, (place, row) in zip(guess.values, guess.where, strict=True):
        owners = origin(view, place).owners
        assert owners is not None
        hit = (value == value[0]) == (owners[row] == owners[row, 0])
        right.append(max(float(hit.double().mean()), 1 - float(hit.double().mean())))
    return sum(right) / len(right)


def test_position_embeddings_give_every_place_away(bench: Bench) -> None:
    view = bench.view(Shuffled(NoMixing()), "upper only", Embedding(0))
    assert in_place(bench.attack(Reorder(), view), view) == 1
    view = bench.view(Shuffled(PatchCutMix(2)), "upper only", Embedding(0))
    assert in_place(bench.attack(Reorder(), view), view) == 1


def test_without_positions_what_fits_together_tells_more_than_each_patch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jigsaw, "epochs", {"smoke": 7})
    monkeypatch.setattr(painter, "MAX_PIXELS", 0)  # Gaussians see what is beside a patch, too
    view = bench.view(Shuffled(NoMixing()), "upper only", Embedding(0, positions=False))
    alone = in_place(bench.attack(Reorder(), view), view)
    together = in_place(bench.attack(Jigsaw(lr=1e-2), view), view)
    assert 1.5 / PATCHES < alone < together


@pytest.mark.parametrize("kind", [Reorder, Jigsaw], ids=lambda kind: kind.name)
def test_of_patches_exchanged_between_images_several_may_be_of_one_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[Attack]
) -> None:
    """Dealing each place once is wrong, as a row need not have a patch of each place."""
    monkeypatch.setattr(painter, "MAX_PIXELS", 0)
    view = bench.view(FrozenEdge(needs_whole_batch=True), lowers=batch_edge())
    several = in_place(bench.attack(kind(), view), view)
    module = import_module(kind.__module__)
    monkeypatch.setattr(module, "are_exchanged", lambda order: False)
    one_each = in_place(bench.attack(kind(), view), view)
    assert several > one_each + 0.01


@pytest.mark.parametrize("kind", [Reorder, Jigsaw], ids=lambda kind: kind.name)
def test_noise_has_no_order(bench: Bench, kind: type[Attack]) -> None:
    view = bench.view(Shuffled(NoMixing()), "upper only", Noise())
    assert in_place(bench.attack(kind(), view), view) < 1.6 / PATCHES


@pytest.mark.parametrize("kind", [Reorder, Jigsaw], ids=lambda kind: kind.name)
def test_where_nothing_is_moved_there_is_no_order_to_find(bench: Bench, kind: type[Attack]) -> None:
    # The server of a shuffling mixer has the uploads before they are shuffled.
    view = bench.view(Shuffled(NoMixing()), "server")
    with pytest.raises(NotApplicable, match="no order to find"):
        kind().fit(view, bench.public, Budget(scale="smoke"))


def test_lower_segments_that_differ_sign_their_patches(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only", {0: Embedding(0), 1: Embedding(1)})
    guess = bench.attack(Attribute(), view)
    assert owned(guess, view) == 1
    assert float(guess.confidence.min()) > 0.9


class Normalised(Embedding):
    """A lower segment whose buffers change in training mode."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.norm: Any = nn.BatchNorm2d(1)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.norm(images))


def test_signatures_leave_the_known_segments_as_they_are(bench: Bench) -> None:
    lowers = {0: Normalised(0), 1: Normalised(1)}
    view = bench.view(PatchCutMix(2), "upper only", lowers)
    Attribute().fit(view, bench.public, Budget(scale="smoke"))
    assert [lower.norm.running_mean.tolist() for lower in lowers.values()] == [[0], [0]]


def test_they_do_so_whatever_their_weights_when_rows_share_a_mask(bench: Bench) -> None:
    lowers = {0: Embedding(0), 1: Embedding(1)}
    view = bench.view(PatchCutMix(2), "upper only", lowers, batch_size=24, knows_lowers=False)
    attack = Attribute()
    attack.fit(view, None)
    assert owned(attack.run(view), view) > 0.9
    own_masks = bench.view(
        PatchCutMix(2, mask_per_sample=True), "upper only", lowers, knows_lowers=False
    )
    attack.fit(own_masks, None)
    with pytest.raises(NotApplicable, match="masks of their own"):
        attack.run(own_masks)


def test_one_lower_segment_leaves_what_the_images_say_and_votes_add_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attribute, "epochs", {"smoke": 10})
    view = bench.view(PatchCutMix(2), "upper only", batch_size=24)
    alone = Attribute(votes=False, lr=1e-2)
    accuracy = owned(bench.attack(alone, view), view)
    alone.setting["votes"] = True
    assert 0.6 < accuracy < owned(alone.run(view), view)


def test_noise_belongs_to_nobody(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only", Noise())
    alone = owned(bench.attack(Attribute(votes=False), view), view)
    # By the better of two numberings chance gives 0.6 of 16 patches.
    assert alone < 0.68


def test_sums_and_known_owners_leave_nothing_to_attribute(bench: Bench) -> None:
    with pytest.raises(NotApplicable, match="sums of all members' patches"):
        Attribute().fit(bench.view(Mixup(2), "upper only"), bench.public)
    view = bench.view(PatchCutMix(2), "sum only")
    with pytest.raises(NotApplicable, match="only such are taken apart"):
        Attribute().fit(view, bench.public)
    nobody = replace(view, releases=[])
    with pytest.raises(NotApplicable):
        Attribute().fit(nobody, bench.public)
