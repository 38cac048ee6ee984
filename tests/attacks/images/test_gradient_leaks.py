"""Labels from gradients: what norms, directions and clusters tell, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import (
    cosine_leak,
    label_clusters,
    name_clusters,
    nearest_known,
    norm_leak,
)
from flwr_splitmix.attacks.images.labels_cluster import LabelsCluster
from flwr_splitmix.attacks.images.labels_gradient import LabelsGradient
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.mixers import PatchCutMix
from tests.attacks.images.conftest import Bench

CLASSES, ROWS = 4, 120


def gradients(labels: Tensor, noise: float = 0.3) -> Tensor:
    """Return (b, 16, 40) whose direction is the label's, and whose size grows with it."""
    directions = torch.randn(CLASSES, 16, 40)
    rows = directions[labels] * (1 + labels.float())[:, None, None]
    return rows + noise * torch.randn(len(labels), 16, 40)


def leak_auc(scores: Tensor, positive: Tensor) -> float:
    """Return max(AUC, 1 - AUC): an attacker learns from one label which side is positive."""
    area = float(roc_auc_score(positive.numpy(), scores.numpy()))
    return max(area, 1 - area)


def labels_of(rows: int = ROWS) -> Tensor:
    return torch.arange(rows) % CLASSES


def test_the_norm_tells_a_class_whose_gradients_are_large() -> None:
    labels = labels_of()
    norms = norm_leak(gradients(labels))
    assert norms.shape == (ROWS,)
    assert leak_auc(norms, labels == CLASSES - 1) == 1
    assert leak_auc(norms, labels == 0) == 1  # small ones tell as much: either way


def test_the_norm_of_equal_gradients_tells_nothing() -> None:
    labels = labels_of(2000)
    assert leak_auc(norm_leak(torch.randn(2000, 50)), labels == 0) < 0.56


def test_the_cosine_is_that_of_the_flattened_gradients() -> None:
    label_gradients = gradients(labels_of(3))
    expected = torch.nn.functional.cosine_similarity(
        label_gradients[0].flatten(), label_gradients[2].flatten(), dim=0
    )
    assert torch.allclose(
        cosine_leak(label_gradients, label_gradients[2])[0].float(), expected, atol=1e-5
    )
    assert torch.allclose(
        cosine_leak(label_gradients, label_gradients).diagonal(), torch.ones(3).double()
    )


def test_clusters_of_directions_are_the_labels_up_to_their_names() -> None:
    labels = labels_of()
    clusters = label_clusters(gradients(labels), CLASSES, seed=0)
    known_rows = torch.tensor([0, 1, 2, 3])
    assert torch.equal(name_clusters(clusters, known_rows, labels[known_rows], CLASSES), labels)


def test_many_rows_are_clustered_too() -> None:
    labels = labels_of(1200)
    clusters = label_clusters(gradients(labels), CLASSES, seed=0)
    known_rows = torch.arange(40)
    named = name_clusters(clusters, known_rows, labels[known_rows], CLASSES)
    assert float((named == labels).double().mean()) > 0.99


def test_a_cluster_of_which_nothing_is_known_gets_a_class_that_none_has() -> None:
    clusters = torch.tensor([0, 0, 1, 1])
    named = name_clusters(clusters, torch.tensor([0]), torch.tensor([1]), 2)
    assert named.tolist() == [1, 1, 0, 0]


def test_a_class_of_which_no_sample_is_known_scores_least() -> None:
    scores = nearest_known(gradients(labels_of(8)), torch.tensor([2]), torch.tensor([2]), CLASSES)
    assert (scores.argmax(1) == 2).all()
    assert (scores[:, [0, 1, 3]] == -1).all()


def view_of(bench: Bench, labels: Tensor) -> View:
    """Return what a member of a group sees whose gradients say the labels."""
    view = bench.view(PatchCutMix(2, None), knows_lowers=False)
    release = Release(1, 0, None, torch.zeros(len(labels), 16, 40), gradient=gradients(labels))
    knowledge = replace(view.knowledge, num_classes=CLASSES)
    return View("member of the group", [release], knowledge)


def test_the_attacks_read_labels_that_gradients_say(bench: Bench) -> None:
    labels = labels_of()
    view = view_of(bench, labels)
    hints = {(0, row): int(labels[row]) for row in range(CLASSES)}
    by_norm = LabelsGradient(leak="norm").run(view)
    assert leak_auc(by_norm.values, labels == CLASSES - 1) == 1
    assert by_norm.where == [(0, row) for row in range(ROWS)]
    for attack in (
        LabelsGradient(leak="cosine", hints=hints),
        LabelsCluster(way="similarity", hints=hints),
        LabelsCluster(way="spectral", hints=hints),
    ):
        values = attack.run(view).values
        read = values.argmax(1) if values.ndim == 2 else values
        assert torch.equal(read, labels), attack.setting


def test_of_two_classes_the_cosine_is_one_score(bench: Bench) -> None:
    labels = torch.arange(ROWS) % 2
    guess = LabelsGradient(leak="cosine", hints={(0, 0): 0, (0, 1): 1}).run(view_of(bench, labels))
    assert guess.values.shape == (ROWS,)
    assert leak_auc(guess.values, labels == 1) == 1


def test_known_samples_older_than_the_newest_rows_are_kept(bench: Bench) -> None:
    """With more rows than the scale clusters, they could be lost one after the other."""
    labels = labels_of(180)
    hints = {(0, row): row for row in range(CLASSES)}
    attack = LabelsCluster(hints=hints)
    attack.budget = Budget("smoke")
    guess = attack.run(view_of(bench, labels))
    rows = [row for _, row in guess.where]
    assert rows == [*range(CLASSES), *range(80, 180)]
    assert torch.equal(guess.values, labels[rows])
