"""Labels read from messages by a classifier of public images, of real runs and of tiny systems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.apps.vision.attacked_ushape import AttackedImages
from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.label_leaks.public_classifier import WAYS, PublicClassifier
from flwr_splitmix.attacks.images.labels_public import LabelsPublic
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.mixers import FrozenEdge, Mixup, NoMixing
from tests.apps.ushape_fit import fit
from tests.attacks.images.conftest import Bench, Embedding, origin
from tests.attacks.images.test_unshuffle import edge

SMOKE = Budget(scale="smoke")
RUN: dict[str, Any] = {
    "num_server_rounds": 1,
    "steps_per_round": 3,
    "batch_size": 20,
    "samples_per_client": 60,
    "dataset": "fashion-mnist-small",
    "patch_size": 8,
}


def read_of(attack: LabelsPublic, view: View, labels: torch.Tensor, sources: Any) -> float:
    """Return the share of labels that are right."""
    guess = attack.run(view)
    truth = [int(labels[sources(number, row)]) for number, row in guess.where]
    return float((guess.values == torch.tensor(truth)).double().mean())


def read_on_bench(bench: Bench, view: View) -> float:
    attack = LabelsPublic()
    attack.fit(view, bench.public, SMOKE)
    return read_of(
        attack, view, bench.victims.labels, lambda n, row: int(origin(view, n).sources[row, 0])
    )


@pytest.mark.parametrize(
    ("strategy", "learns"), [("USplitSL", "tail"), ("USplitSL", "all"), ("USplitFL", "all")]
)
def test_messages_of_a_u_shape_show_classes_whatever_learns(
    strategy: str, learns: str, tmp_path: Path
) -> None:
    training = fit(tmp_path, **RUN, strategy=strategy, learns=learns, record_attacks=True)
    attacked = attacked_run(training.run)
    assert isinstance(attacked, AttackedImages)
    case = attacked.case("server", trained=120, held_out=0)
    assert all(release.labels is None for release in case.view.releases)
    attack = LabelsPublic()
    attack.fit(case.view, attacked.public(500), SMOKE)
    labels = case.truth.pictures.labels
    share = read_of(attack, case.view, labels, lambda n, row: case.truth.origins[n].sources[row, 0])
    most_frequent = float(labels.bincount().max()) / len(labels)
    assert share > most_frequent + 0.4


def test_first_weights_are_enough_and_stay_out_of_reach_of_other_attacks(tmp_path: Path) -> None:
    training = fit(tmp_path, **RUN, strategy="USplitSL")
    attacked = attacked_run(training.run)
    knowledge = attacked.known_to("server")
    assert knowledge.lowers is None
    assert knowledge.first is not None
    assert not knowledge.untrained
    assert attacked.known_to("eavesdropper").first is None
    assert attacked.known_to("server", ["lower"]).lowers is not None


@pytest.mark.parametrize("shuffled", [False, True])
def test_each_image_alone_shows_its_class_also_behind_a_shuffle(
    bench: Bench, shuffled: bool
) -> None:
    view = bench.view(FrozenEdge(), lowers=edge()) if shuffled else bench.view(NoMixing())
    assert read_on_bench(bench, view) > 0.45


def test_each_client_of_its_own_weights_has_its_own_classifier(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers={0: Embedding(0), 1: Embedding(1)})
    assert {release.client for release in view.releases} == {0, 1}
    assert read_on_bench(bench, view) > 0.5


def test_it_does_not_apply_without_public_images_or_smashed_data_or_a_lower_segment(
    bench: Bench,
) -> None:
    view = bench.view(NoMixing())
    with pytest.raises(NotApplicable, match="needs public images, and there are none"):
        LabelsPublic().fit(view, None, SMOKE)
    empty = [replace(r, smashed=torch.zeros_like(r.smashed)) for r in view.releases]
    with pytest.raises(NotApplicable, match="no smashed data"):
        LabelsPublic().fit(replace(view, releases=empty), bench.public, SMOKE)
    with pytest.raises(NotApplicable, match="no trained lower segment") as caught:
        LabelsPublic().fit(bench.view(NoMixing(), knows_lowers=False), bench.public, SMOKE)
    assert caught.value.assumable == ("lower",)


def test_it_does_not_apply_to_sums_of_images_or_to_other_classes(bench: Bench) -> None:
    view = bench.view(Mixup(2), "upper only", lowers={0: Embedding(0), 1: Embedding(1)})
    with pytest.raises(NotApplicable, match="made of several images"):
        LabelsPublic().fit(view, bench.public, SMOKE)
    others = Pictures(bench.public.images, bench.public.labels + 90)
    with pytest.raises(NotApplicable, match="at least two of the victims' 10 classes"):
        LabelsPublic().fit(bench.view(NoMixing()), others, SMOKE)


@pytest.mark.parametrize("way", WAYS)
def test_a_classifier_of_two_classes_is_surer_away_from_their_border(way: Any) -> None:
    rows = torch.linspace(-1, 1, 60)[:, None, None].expand(-1, 4, 3)
    labels = (rows[:, 0, 0] > 0).long()
    guesses, sure = PublicClassifier(rows, labels, **way)(rows)
    assert float((guesses == labels).double().mean()) > 0.95
    assert float(sure[15]) > float(sure[29])


def test_a_spent_budget_tries_one_way_and_still_guesses_every_row(bench: Bench) -> None:
    view, budget = bench.view(NoMixing()), Budget(scale="smoke", seconds=0)
    attack = LabelsPublic()
    attack.fit(view, bench.public, budget)
    assert attack.way == WAYS[0]
    assert len(attack.run(view).where) == len(bench.victims)
    assert budget.stopped_after is not None


def test_a_classifier_is_sure_as_far_as_its_class_is_ahead() -> None:
    """Where pairs of classes disagree with the scores, it must not be sure of another class."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 10
    rows = torch.randn(600, 4, 3, generator=draws)
    classifier = PublicClassifier(rows, labels, **WAYS[0])
    others = torch.randn(2000, 4, 3, generator=draws)
    guesses, sure = classifier(others)
    scores = classifier._machine.decision_function(
        classifier._components(classifier._features(others))
    )
    ahead = torch.from_numpy(scores.argmax(1)) == guesses
    assert 0 < int((~ahead).sum()) < 500
    assert torch.equal(sure > 0, ahead)
