"""The attack on frozen edges that shuffle: exact patches, places, where there are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.embedding.patches import to_patches
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge, from_where
from flwr_splitmix.attacks.images.placing.order_free import OrderFree, moments
from flwr_splitmix.attacks.images.placing.patch_map import PatchMap
from flwr_splitmix.attacks.images.unshuffle import MIN_LINKED_BATCHES, Unshuffle, linked_rows
from flwr_splitmix.mixers import FrozenEdge, Mixer, NoMixing, PatchCutMix
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle
from flwr_splitmix.segments.vision.shuffled_edge import split_shuffled_edge
from tests.attacks.images.conftest import GRID, PATCHES, SIDE, WIDTH, Bench, Embedding, origin

EDGE = FrozenEdge()
CPU = torch.device("cpu")


def edge(method: Any = "patch", width: int = WIDTH, **more: Any) -> nn.Sequential:
    """Return a frozen edge of small patches."""
    return split_shuffled_edge(
        "vit_tiny_patch16_224", method=method, image_size=SIDE, patch_size=4, depth=2, seed=0,
        embed_dim=width, num_heads=4, **more,
    ).lower  # fmt: skip


def batch_edge() -> nn.Sequential:
    return edge("batch", kappa=0.5)


def in_place(attack: Unshuffle, view: View) -> float:
    """Return the part of patches whose place was found."""
    right = []
    for number, release in enumerate(view.releases):
        order, reader = origin(view, number).order, attack.reader
        _, placed = reader.read(
            attack.edge.undo(release.smashed), reader.classes_of(release.labels)
        )
        assert order is not None
        assert placed is not None
        right.append((placed.places == order).double().mean())
    return float(torch.stack(right).mean())


class Prefix(nn.Module):
    """Puts two tokens in front, as a class token is."""

    def forward(self, tokens: Tensor) -> Tensor:
        two = torch.arange(2 * WIDTH).sin().view(1, 2, -1).expand(len(tokens), -1, -1)
        return torch.cat([two.to(tokens), tokens], 1)


def with_prefix() -> nn.Sequential:
    embedding, shuffle, block = edge().children()
    return nn.Sequential(embedding, shuffle, Prefix(), block)


@pytest.mark.parametrize("make_lower", [edge, batch_edge, with_prefix])
def test_every_patch_is_read_exactly_behind_a_frozen_block(bench: Bench, make_lower: Any) -> None:
    lower = make_lower()
    prefix = 2 if make_lower is with_prefix else 0
    view = bench.view(EDGE, lowers=lower, prefix=prefix)
    frozen_edge = ShuffledEdge.of(view.knowledge, CPU)
    frozen_edge.learn_to_undo(view, bench.public, 0)
    reader = PatchMap.probe(frozen_edge, bench.public.images)
    assert reader is not None
    for place, release in enumerate(view.releases):
        behind = origin(view, place)
        assert behind.order is not None
        patches = to_patches(bench.victims.images[behind.sources[:, 0]], GRID).flatten(0, 1)
        read = reader.read(frozen_edge.undo(release.smashed))
        assert float((read - patches[from_where(behind.order)]).square().mean()) < 1e-10


def test_a_spectrum_hides_nothing(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=edge("spectral", WIDTH // 2))
    attack = Unshuffle()
    assert bench.error(bench.attack(attack, view), view) < 1e-6
    assert in_place(attack, view) == 1


def test_nor_does_that_of_pixels_but_for_corners_that_hold_hardly_anything(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=edge("spectral-pixels"), width=32)
    attack = Unshuffle()
    assert bench.error(bench.attack(attack, view), view) < 1e-4
    assert in_place(attack, view) > 0.95


def test_patches_find_their_places_by_what_is_likely_there(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=edge())
    attack = Unshuffle()
    guess = bench.attack(attack, view)
    assert bench.error(guess, view) < 0.4 * bench.floor
    assert in_place(attack, view) > 5 / PATCHES
    assert len(guess.where) == len(bench.victims)


def test_patches_of_a_batch_find_their_images_too(bench: Bench) -> None:
    mixer = FrozenEdge(needs_whole_batch=True)
    view = bench.view(mixer, lowers=batch_edge())
    attack = Unshuffle()
    assert bench.error(bench.attack(attack, view), view) < 0.6 * bench.floor
    assert in_place(attack, view) > 5 / (PATCHES * view.knowledge.batch_size)


def test_without_labels_it_reads_less_and_still_more_than_nothing(bench: Bench) -> None:
    lower = edge()
    named, unnamed = (bench.view(EDGE, who, lower) for who in ("server", "eavesdropper"))
    assert "labels" not in unnamed.available
    errors = [bench.error(bench.attack(Unshuffle(), v), v) for v in (named, unnamed)]
    assert errors[0] < errors[1] < 0.6 * bench.floor


def test_labels_of_other_classes_are_left_out(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=edge())
    attack = Unshuffle()
    public = type(bench.public)(bench.public.images, bench.public.labels + 90)
    attack.fit(view, public, Budget(scale="smoke"))
    assert bench.error(attack.run(view), view) < 0.6 * bench.floor


def test_a_spent_budget_leaves_what_labels_say(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=edge())
    attack, budget = Unshuffle(), Budget(scale="smoke", seconds=0)
    guess = bench.attack(attack, view, budget)
    assert budget.stopped_after is not None
    # Only the first release was put in order.
    sure = zip(guess.where, guess.confidence.tolist(), strict=True)
    assert {release for (release, _), each in sure if each > -1e6} == {0}
    assert bench.error(guess, view) < bench.floor


class Squash(nn.Module):
    """Cannot be undone."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.clamp_min(0)


class Cut(nn.Module):
    """Leaves out half of every token."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[..., ::2]


class Blend(nn.Module):
    """Sends half of the image's numbers, each from all over it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIDE * SIDE, PATCHES * 8)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.project(images.flatten(1))
        return tokens.reshape(-1, PATCHES, 8)


class Bent(nn.Module):
    """Is not linear."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.tanh()


def sequence(*stages: nn.Module) -> nn.Sequential:
    return nn.Sequential(Embedding(0, positions=False), *stages)


@pytest.mark.parametrize(
    ("lower", "mixer", "message"),
    [
        (Embedding(0), NoMixing(), "do not shuffle patches at a frozen edge"),
        (Embedding(0), PatchCutMix(2), "do not shuffle patches at a frozen edge"),
        (sequence(Squash()), EDGE, "do not shuffle patches at a frozen edge"),
        ({0: edge(), 1: sequence(PatchShuffle())}, EDGE, "have different weights"),
        (sequence(PatchShuffle(), Squash()), EDGE, r"Squash\) cannot be undone"),
        (sequence(PatchShuffle(), Cut()), EDGE, r"Cut\) cannot be undone"),
        (sequence(Bent(), PatchShuffle()), EDGE, "not linear in the image"),
        (sequence(Bent(), PatchShuffle(0.5)), EDGE, "not each of one patch alone"),
        (edge(), PatchCutMix(2), "not the shuffled tokens of single images"),
        (nn.Sequential(Blend(), PatchShuffle()), EDGE, "than the tokens hold"),
    ],
)
def test_where_there_is_no_such_shuffle_it_says_so(
    bench: Bench, lower: Any, mixer: Mixer, message: str
) -> None:
    first = next(iter(lower.values())) if isinstance(lower, dict) else lower
    width = first(bench.victims.images[:1]).shape[2]
    view = bench.view(mixer, lowers=lower, width=width)
    with pytest.raises(NotApplicable, match=message):
        Unshuffle().fit(view, bench.public, Budget(scale="smoke"))


def test_an_embedding_with_positions_orders_its_patches_exactly(bench: Bench) -> None:
    view = bench.view(EDGE, lowers=nn.Sequential(Embedding(0), PatchShuffle()))
    attack = Unshuffle()
    assert bench.error(bench.attack(attack, view), view) < 1e-6
    assert in_place(attack, view) == 1


def test_a_regression_knows_means_without_labels_and_moments() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(300, 4, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(300) % 2
    targets = tokens.mean(1)[:, :1] + labels[:, None]
    regression = OrderFree.fit(moments(tokens, 0), labels, 2, targets)
    shuffled = moments(tokens[:, [2, 0, 3, 1]], 0)
    assert torch.allclose(regression(shuffled, labels), regression(moments(tokens, 0), labels))
    assert float((regression(shuffled, labels) - targets).square().mean()) < 0.01
    unnamed = regression(regression.middle.expand(2, -1), None)
    assert unnamed[:, 0].tolist() == pytest.approx([float(targets.mean())] * 2)
    assert float(regression.residuals.square().mean()) < 0.01


def test_batches_of_one_image_betray_which_patches_are_its_own(bench: Bench) -> None:
    """Ids tell that the same image was in several batches: shuffling across these adds little."""
    mixer = FrozenEdge(needs_whole_batch=True)
    errors = []
    for times in (1, MIN_LINKED_BATCHES, 4):
        view = bench.view(mixer, lowers=batch_edge(), times=times)
        errors.append(bench.error(bench.attack(Unshuffle(), view), view))
    within = bench.view(EDGE, lowers=edge())
    alone = bench.error(bench.attack(Unshuffle(), within), within)
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] < 1.2 * alone


def test_all_rows_of_a_linked_image_have_one_guess(bench: Bench) -> None:
    view = bench.view(
        FrozenEdge(needs_whole_batch=True), lowers=batch_edge(), times=MIN_LINKED_BATCHES
    )
    guess = bench.attack(Unshuffle(), view)
    place = {where: number for number, where in enumerate(guess.where)}
    assert len(place) == MIN_LINKED_BATCHES * len(bench.victims)
    groups = linked_rows(view)
    assert len(groups) == len(bench.victims)
    for rows in groups:
        first, *others = (guess.values[place[row]] for row in rows)
        assert all(torch.equal(first, other) for other in others)


def test_without_ids_or_within_images_no_batches_are_compared(bench: Bench) -> None:
    mixer = FrozenEdge(needs_whole_batch=True)
    view = bench.view(mixer, lowers=batch_edge(), times=MIN_LINKED_BATCHES)
    bare = replace(view, releases=[replace(release, ids=None) for release in view.releases])
    assert linked_rows(bare) == []
    assert linked_rows(bench.view(mixer, lowers=batch_edge(), times=MIN_LINKED_BATCHES - 1)) == []
    once = bench.view(EDGE, lowers=edge(), times=MIN_LINKED_BATCHES)
    attack = Unshuffle()
    guess = bench.attack(attack, once)
    values = guess.values[: len(bench.victims)]
    assert torch.equal(values[:8], attack.run(replace(once, releases=once.releases[:1])).values)


def test_a_spent_budget_still_guesses_all_rows_of_linked_images(bench: Bench) -> None:
    view = bench.view(
        FrozenEdge(needs_whole_batch=True), lowers=batch_edge(), times=MIN_LINKED_BATCHES
    )
    budget = Budget(scale="smoke", seconds=0)
    guess = bench.attack(Unshuffle(), view, budget)
    assert len(guess.where) == MIN_LINKED_BATCHES * len(bench.victims)
    assert budget.stopped_after is not None
    assert bench.error(guess, view) < bench.floor
