"""A member of a mixing group reads the other's labels from its gradients and its own labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images import labels_peer
from flwr_splitmix.attacks.images.labels_peer import LabelsPeer
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Release
from flwr_splitmix.attacks.running.images import attempt
from flwr_splitmix.attacks.running.leak import measure_leak
from flwr_splitmix.mixers import PatchCutMix
from tests.attacks.images.conftest import Bench
from tests.attacks.victims import attacked, small

CLASSES, BATCH, PATCHES, WIDTH = 4, 10, 16, 40


@pytest.fixture(scope="module", params=["CutMixSL", "MixupSL"])
def system(request: pytest.FixtureRequest) -> Attacked:
    """Two clients' three epochs of 100 images each, all recorded."""
    return train_victim(
        small(request.param, samples=100, rounds=3, steps=10, batch_size=10, seed=1)
    )


def test_labels_are_read_well_above_the_most_frequent_class(system: Attacked) -> None:
    measure = measure_leak(system, "labels-peer", "member of the group", victims=600)[0]
    assert measure.metric == "labels read"
    assert measure.floor < 0.2
    assert measure.low > 2 * measure.floor


def test_a_guess_is_at_every_row_once_with_a_score_of_each_class(system: Attacked) -> None:
    case = system.case("member of the group", trained=200, held_out=40)
    _, guess = attempt(LabelsPeer, case, case.truth.pictures, Budget("smoke"))
    rows = [(n, row) for n, r in enumerate(case.view.releases) for row in range(len(r.smashed))]
    assert sorted(guess.where) == rows
    assert guess.values.shape == (len(rows), 10)
    assert torch.allclose(guess.values.exp().sum(1), torch.ones(len(rows)).double())
    assert torch.equal(guess.confidence, guess.values.amax(1))


def test_a_member_knows_its_own_labels_and_not_the_others(system: Attacked) -> None:
    case = system.case("member of the group", trained=40, held_out=20)
    server = system.case("server", trained=40, held_out=0).view.releases
    sent_labels = {(r.server_round, r.step): r.labels for r in server if r.client == 0}
    for release, origin in zip(case.view.releases, case.truth.origins, strict=True):
        assert release.labels is None
        own_labels = release.own_labels
        assert own_labels is not None
        assert not torch.equal(own_labels, case.truth.pictures.labels[origin.sources[:, 0]])
        if (labels := sent_labels.get((release.server_round, release.step))) is not None:
            assert torch.equal(own_labels, labels)


def test_noise_on_labels_that_are_sent_is_not_on_the_members_own() -> None:
    case = attacked("DPCutMixSL").case("member of the group", trained=16, held_out=8)
    assert all(r.own_labels is not None and r.own_labels.ndim == 1 for r in case.view.releases)


@pytest.mark.parametrize(
    ("method", "adversary", "lacks"),
    [
        ("PSL", "member of the group", "no examples of its own in a mixture"),
        ("CutoutSL", "member of the group", "no examples of its own in a mixture"),
        ("CutMixSL", "server", "no examples of its own in a mixture"),
        ("CutMixSL", "upper only", "no examples of its own in a mixture"),
    ],
)
def test_without_a_mixture_with_own_examples_it_does_not_apply(
    method: str, adversary: Adversary, lacks: str
) -> None:
    with pytest.raises(NotApplicable, match=lacks):
        measure_leak(attacked(method), "labels-peer", adversary, victims=8)


def test_mixtures_of_three_do_not_apply(bench: Bench) -> None:
    view = view_of(bench, *drawn(40))
    three = replace(view, knowledge=replace(view.knowledge, k=3))
    with pytest.raises(NotApplicable, match="mixes 3 clients, whose shares no other member knows"):
        LabelsPeer().fit(three, None)


def drawn(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return own and other labels (n,), and mixing ratios of batches (n,)."""
    own_labels, other_labels = torch.randint(0, CLASSES, (2, rows))
    return (
        own_labels,
        other_labels,
        (0.3 + 0.4 * torch.rand(rows // BATCH)).repeat_interleave(BATCH),
    )


def view_of(bench: Bench, own_labels: Tensor, other_labels: Tensor, lam: Tensor) -> View:
    """Return a member's view, in which classes exchange their directions after half of the batches.

    One direction of noise is much larger than what labels say.
    """
    releases, directions, loud = [], torch.randn(CLASSES, WIDTH), torch.randn(WIDTH)
    for start in range(0, len(own_labels), BATCH):
        if start == len(own_labels) // 2:
            directions = directions.flip(0)
        rows = slice(start, start + BATCH)
        share = lam[rows, None]
        clean = share * directions[own_labels[rows]] + (1 - share) * directions[other_labels[rows]]
        noise = 0.3 * torch.randn(BATCH, WIDTH) + 20 * torch.randn(BATCH, 1) * loud
        gradient = ((clean + noise) / PATCHES)[:, None].expand(-1, PATCHES, -1)
        releases.append(
            Release(
                1, start, None, torch.zeros(BATCH, PATCHES, WIDTH), lam=float(lam[start]),
                gradient=gradient, own_labels=own_labels[rows],
            )
        )  # fmt: skip
    view = bench.view(PatchCutMix(2, None), knows_lowers=False)
    knowledge = replace(view.knowledge, num_classes=CLASSES)
    return View("member of the group", releases, knowledge)


def read(guess: Guess, other: Tensor) -> float:
    """Return the share of the other's labels that a guess has right."""
    rows = [release * BATCH + row for release, row in guess.where]
    return float((guess.values.argmax(1) == other[rows]).double().mean())


def test_directions_that_change_are_read_in_windows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_labels, other_labels, lam = drawn(800)
    view = view_of(bench, own_labels, other_labels, lam)
    whole = read(LabelsPeer().run(view), other_labels)
    monkeypatch.setattr(labels_peer, "WINDOW", 400)
    assert read(LabelsPeer().run(view), other_labels) > 0.95 > whole + 0.2


def test_it_reads_by_its_own_labels(bench: Bench) -> None:
    """With labels that are not those of its examples it reads nothing."""
    own_labels, other_labels, lam = drawn(400)
    view = view_of(bench, own_labels, other_labels, lam)
    view = replace(view, releases=view.releases[:20])
    assert read(LabelsPeer().run(view), other_labels) > 0.95
    wrong = [
        replace(r, own_labels=torch.randint(0, CLASSES, r.own_labels.shape))
        for r in view.releases
        if r.own_labels is not None
    ]
    assert read(LabelsPeer().run(replace(view, releases=wrong)), other_labels) < 0.4


def test_gradients_of_zero_are_read_as_anything(bench: Bench) -> None:
    view = view_of(bench, *drawn(20))
    still = [replace(r, gradient=torch.zeros(BATCH, PATCHES, WIDTH)) for r in view.releases]
    guess = LabelsPeer().run(replace(view, releases=still))
    assert bool(guess.values.isfinite().all())


def test_a_spent_budget_reads_the_newest_releases(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_peer, "WINDOW", 40)
    attack = LabelsPeer()
    view = view_of(bench, *drawn(80))
    attack.fit(view, None, Budget(seconds=0.0))
    assert {release for release, _ in attack.run(view).where} == {4, 5, 6, 7}
    assert attack.budget.cut.is_set()


def test_it_needs_no_public_images(system: Attacked) -> None:
    view = system.case("member of the group", trained=200, held_out=0).view
    attack = LabelsPeer.tune(view, None)
    assert isinstance(attack.run(view), Guess)
    assert not isinstance(view.knowledge.upper, torch.nn.Module)
    assert not any(isinstance(each, Pictures) for each in vars(attack).values())
