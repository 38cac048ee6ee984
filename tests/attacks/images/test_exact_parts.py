"""Mixtures of several known embeddings, read without training, and painted where nothing came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.attribute import Attribute
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.embedding import unmixing
from flwr_splitmix.attacks.images.embedding.subspaces import fit_subspace
from flwr_splitmix.attacks.images.embedding.unmixing import Unmixer
from flwr_splitmix.attacks.images.label_leaks.shares import label_shares, of_parts
from flwr_splitmix.attacks.images.linear_decoder import LinearDecoder
from flwr_splitmix.attacks.images.painting import gaussian, painter
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.images.reorder import Reorder
from flwr_splitmix.attacks.images.separate import Separate
from flwr_splitmix.mixers import Mixer, Mixup, NoMixing, PatchCutMix, Shuffled
from tests.attacks.images.conftest import Bench, Embedding
from tests.attacks.images.test_places import in_place, owned


def segments(clients: int, positions: bool = True) -> dict[int, Embedding]:
    return {client: Embedding(client, positions) for client in range(clients)}


@pytest.mark.parametrize(
    ("mixer", "clients", "part"),
    [
        (PatchCutMix(2), 3, 0.15),
        (PatchCutMix(3), 4, 0.25),
        (PatchCutMix(2, mask_per_sample=True), 3, 0.15),
        (Shuffled(PatchCutMix(2)), 3, 0.3),
        (Mixup(2), 3, 1e-9),
    ],
    ids=["patches", "of three", "own masks", "shuffled", "sums"],
)
def test_known_embeddings_that_differ_are_taken_apart_without_training(
    bench: Bench, mixer: Mixer, clients: int, part: float
) -> None:
    """A transformer alone reads little of them, and costs all the time."""
    trained: list[str] = []
    budget = Budget("smoke", progress=lambda stage, count, of: trained.append(stage))
    view = bench.view(mixer, "upper only", segments(clients, not isinstance(mixer, Shuffled)))
    attack = Separate.tune(view, bench.public, budget)
    assert attack.exact
    assert "separate" not in trained
    assert bench.error(attack.run(view), view) < part * bench.floor


@pytest.mark.parametrize(
    ("mixer", "lowers"),
    [
        (Mixup(2), None),  # one lower segment for all
        (Shuffled(PatchCutMix(2)), None),
        (Mixup(3), segments(3)),  # more unknowns than a token has numbers
        (Shuffled(Mixup(2)), segments(2)),
    ],
    ids=["sums of one", "moved of one", "too many", "moved sums"],
)
def test_where_nothing_tells_members_apart_the_transformer_is_left(
    bench: Bench, mixer: Mixer, lowers: dict[int, Embedding] | None
) -> None:
    view = bench.view(mixer, "upper only", lowers)
    trained: list[str] = []
    budget = Budget("smoke", progress=lambda stage, count, of: trained.append(stage))
    guess = bench.attack(Separate(), view, budget)
    assert "separate" in trained
    members = view.knowledge.k
    assert len(guess.where) == members * len(set(guess.where))
    assert guess.values.isfinite().all()


def test_segments_that_are_no_patch_embeddings_do_no_harm(bench: Bench) -> None:
    class Bent(Embedding):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).square()

    view = bench.view(PatchCutMix(2), "upper only", {0: Bent(0), 1: Bent(1)})
    guess = bench.attack(Separate(), view)
    assert guess.values.isfinite().all()


def test_a_spent_budget_ends_the_exact_way_too(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only", segments(3))
    for seconds in (1e-9, 0.05):
        budget = Budget("smoke", seconds=seconds)
        guess = bench.attack(Separate(), view, budget)
        assert guess.values.isfinite().all()
        assert budget.stopped_after is not None


def test_a_limit_leaves_time_for_what_needs_little(bench: Bench) -> None:
    """A decoder alone could take all of it, and patches that are not sent would become the mean."""
    view = bench.view(PatchCutMix(2))
    budget = Budget("paper", seconds=2)  # of this thread's processor time; in full it takes 5
    guess = bench.attack(LinearDecoder(), view, budget)
    assert budget.cut.is_set()
    assert bench.error(guess, view) < 0.25 * bench.floor


def test_a_group_is_not_taken_apart_if_too_many_could_be_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subspaces = {c: fit_subspace(torch.randn(30, 4, 2) @ torch.randn(2, 9)) for c in range(4)}
    assert Unmixer.of(subspaces, 2) is not None
    monkeypatch.setattr(unmixing, "MAX_COMBINATIONS", 5)
    assert Unmixer.of(subspaces, 2) is None


def test_ratios_are_found_and_whoever_is_not_there_has_none() -> None:
    embeddings = [(torch.randn(2, 9).double(), torch.randn(4, 9).double()) for _ in range(3)]
    patches = [torch.rand(6, 4, 2).double() for _ in range(3)]
    tokens = [
        p @ embedding + place for p, (embedding, place) in zip(patches, embeddings, strict=True)
    ]
    unmixer = Unmixer.of({c: fit_subspace(t) for c, t in enumerate(tokens)}, 2)
    assert unmixer is not None
    unmixed = unmixer(0.7 * tokens[2] + 0.3 * tokens[0])
    assert unmixed.members == (0, 2)
    assert unmixed.ratios.tolist() == pytest.approx([0.3, 0.7])
    assert torch.allclose(unmixed.tokens, torch.stack([tokens[0], tokens[2]]), atol=1e-6)
    alone = unmixer(tokens[1])
    assert alone.ratios[alone.members.index(1)] == pytest.approx(1)


def test_a_gaussian_paints_what_was_not_sent_better_than_the_decoder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoder, "epochs", {"cpu": 10})  # there are few public images here
    view = bench.view(PatchCutMix(2))
    budget = Budget("cpu")
    painted = bench.error(bench.attack(LinearDecoder(lr=1e-2), view, budget), view)
    monkeypatch.setattr(painter, "MAX_PIXELS", 0)
    decoded = bench.error(bench.attack(LinearDecoder(lr=1e-2), view, budget), view)
    assert painted < 0.7 * decoded


def striped(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw (n, 2, 2): in class 1 the second patch is the first one's negative, else its copy."""
    drawn = torch.Generator().manual_seed(seed)
    first, labels = torch.rand(n, 2, generator=drawn), torch.arange(n) % 2
    second = torch.where(labels[:, None] == 1, 1 - first, first)
    return torch.stack([first, second], dim=1), labels


def painter_of_stripes() -> Painter:
    patches, labels = striped(2_000, 0)
    everything, class_gaussians = gaussian.by_class(patches, labels, 2)
    return Painter(everything, class_gaussians)


def test_labels_say_what_is_painted() -> None:
    patches, labels = striped(40, 1)
    visible = torch.tensor([[True, False]]).expand(40, 2)
    shares = torch.nn.functional.one_hot(labels, 2).double()
    labelled, unlabelled, classless = (
        float((each - patches).square().mean())
        for each in (
            painter_of_stripes()(patches, visible, shares),
            painter_of_stripes()(patches, visible),
            painter_of_stripes().classless(patches, visible),
        )
    )
    assert labelled < 0.3 * min(unlabelled, classless)


def test_of_a_mixture_the_class_is_the_one_whose_weight_is_the_parts_share(bench: Bench) -> None:
    knowledge = bench.view(PatchCutMix(2)).knowledge
    labels = torch.zeros(2, 10)
    labels[0, 3], labels[0, 5], labels[1, 2] = 0.75, 0.25, 1.0
    shares = label_shares(labels, knowledge)
    assert shares is not None
    parts = of_parts(shares, torch.tensor([[0.25, 0.75]] * 2).double())
    assert parts.argmax(2).tolist() == [[5, 3], [2, 2]]
    assert torch.allclose(parts.sum(2), torch.ones(2, 2).double())
    noisy = label_shares(-torch.rand(2, 10), knowledge)
    assert noisy is not None
    assert torch.allclose(noisy, torch.full((2, 10), 0.1).double())
    assert label_shares(torch.tensor([11]), knowledge) is None
    assert label_shares(labels, replace(knowledge, multi_label=True)) is None


def test_members_of_one_class_add_up_in_a_label() -> None:
    """Each of the two would otherwise get the third one's class, whose weight is its share."""
    labels = torch.tensor([[0.0, 0.67, 0.33, 0.0]]).double()
    parts = of_parts(labels, torch.tensor([[0.34, 0.33, 0.33]]).double())[0]
    # Any may be the one of the other class, as shares do not tell; two of them are not.
    assert parts.argmax(1).tolist() == [1, 1, 1]
    assert 0.6 < float(parts[:, 1].min()) <= float(parts[:, 1].max()) < 0.9
    parts = of_parts(
        torch.tensor([[0.0, 0.8, 0.2, 0.0]]).double(), torch.tensor([[0.5, 0.3, 0.2]]).double()
    )[0]
    assert parts.argmax(1).tolist() == [1, 1, 2]


def test_classes_that_would_take_too_much_memory_are_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(painter, "MAX_NUMBERS", 10 * 256**2 - 1)
    image_painter = Painter.of(bench.public, (4, 4), 10)
    assert image_painter is not None
    assert not image_painter.own
    monkeypatch.setattr(painter, "MAX_PIXELS", 255)
    assert Painter.of(bench.public, (4, 4), 10) is None


def test_moved_patches_are_still_in_their_owners_subspaces(bench: Bench) -> None:
    """So they need no transformer."""
    view = bench.view(Shuffled(PatchCutMix(2)), "upper only", segments(3, False))
    trained: list[str] = []
    budget = Budget("smoke", progress=lambda stage, count, of: trained.append(stage))
    assert owned(bench.attack(Attribute(), view, budget), view) == 1
    assert not trained


@pytest.mark.parametrize(
    ("mixer", "lowers"),
    [
        (Shuffled(NoMixing()), Embedding(0, positions=False)),
        (Shuffled(PatchCutMix(2)), segments(2, False)),
    ],
    ids=["alone", "mixed"],
)
def test_gaussians_place_patches_beside_each_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mixer: Mixer, lowers: Any
) -> None:
    view = bench.view(mixer, "upper only", lowers)
    beside = in_place(bench.attack(Reorder(), view), view)
    monkeypatch.setattr(painter, "MAX_PIXELS", 0)
    alone = in_place(bench.attack(Reorder(), view), view)
    assert beside > 1.5 * alone
