"""Losses and scores of classes and of multi-label examples, beside scikit-learn's."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef
from torch import Tensor

from flwr_splitmix.labels import (
    Remedy,
    Tally,
    known_rows,
    tally,
    target_loss,
    target_rows,
    wrong_labels,
)

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.1, -0.2], [1.0, 1.0, -4.0], [0.3, -2.0, 0.9]])
SEVERAL = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 0, 0], [0, 0, 1]])
ONE = torch.tensor([0, 2, 0, 2])


def test_classes_are_scored_by_the_largest_logit() -> None:
    scored = tally(LOGITS, ONE)
    assert scored.accuracy == pytest.approx(accuracy_score(ONE, LOGITS.argmax(1)))
    likely = LOGITS.double().softmax(1)
    assert scored.mean_loss == pytest.approx(log_loss(ONE, likely, labels=[0, 1, 2]))
    assert scored.examples == 4
    assert scored.scores == {}


def test_several_labels_are_scored_each_and_all_together() -> None:
    scored = tally(LOGITS, SEVERAL)
    predictions, right = (LOGITS > 0).flatten().long(), SEVERAL.flatten()
    assert scored.accuracy == pytest.approx(accuracy_score(right, predictions))
    assert scored.scores["matthews"] == pytest.approx(matthews_corrcoef(right, predictions))
    losses = [log_loss(SEVERAL[:, i], LOGITS[:, i].sigmoid(), labels=[0, 1]) for i in range(3)]
    assert scored.mean_loss == pytest.approx(sum(losses) / 3)
    assert scored.examples == 4


@pytest.mark.parametrize("labels", [ONE, SEVERAL], ids=["classes", "multi-label"])
def test_batches_add_up(labels: Tensor) -> None:
    parts = [tally(LOGITS[:1], labels[:1]), tally(LOGITS[1:], labels[1:])]
    whole = tally(LOGITS, labels)
    added = sum(parts, Tally())
    assert added.accuracy == whole.accuracy
    assert added.scores == whole.scores
    assert added.mean_loss == pytest.approx(whole.mean_loss)


@pytest.mark.parametrize("labels", [torch.zeros(4, 3).long(), torch.ones(4, 3).long()])
def test_equal_labels_have_no_correlation(labels: Tensor) -> None:
    assert tally(LOGITS, labels).scores == {"matthews": 0.0}


@pytest.mark.parametrize("labels", [ONE, SEVERAL], ids=["classes", "multi-label"])
def test_what_is_not_a_number_is_wrong(labels: Tensor) -> None:
    """As class 0, a NaN would count as right on that class."""
    assert tally(torch.full((4, 3), math.nan), labels).accuracy == 0.0
    right = torch.where(labels > 0, 1.0, -1.0) if labels.dim() == 2 else torch.eye(3)[labels]
    right[0] = math.nan
    assert tally(right, labels).accuracy == 0.75


def test_nothing_scored_has_no_score() -> None:
    assert math.isnan(Tally().accuracy)
    assert math.isnan(Tally().mean_loss)


def test_losses_of_mixed_targets_are_linear_in_them() -> None:
    for multi_label, labels in ((False, ONE), (True, SEVERAL)):
        rows = target_rows(labels, 3, torch.float64)
        other = rows.roll(1, 0)
        logits = LOGITS.double()
        mixed = target_loss(logits, 0.3 * rows + 0.7 * other, multi_label=multi_label)
        parts = [target_loss(logits, part, multi_label=multi_label) for part in (rows, other)]
        torch.testing.assert_close(mixed, 0.3 * parts[0] + 0.7 * parts[1])
        each = target_loss(logits, rows, multi_label=multi_label, reduction="none")
        assert each.shape == (4,)
        torch.testing.assert_close(each.mean(), parts[0])


@pytest.mark.parametrize(
    ("labels", "multi_label", "sentence"),
    [
        (ONE, False, None),
        (SEVERAL, True, None),
        (ONE[:0], False, None),
        (SEVERAL, False, "have shape (4, 3) of torch.int64, expected (4,) of torch.int64"),
        (ONE, True, "have shape (4,) of torch.int64, expected (4, 3) of torch.int64"),
        (SEVERAL.float(), True, "have shape (4, 3) of torch.float32, expected (4, 3) of torch."),
        (SEVERAL + 1, True, "lie in 1..2, expected 0..1"),
        (SEVERAL - 1, True, "0..1 (1 where an example has the label, else 0: leave out examples"),
        (-SEVERAL, True, "lie in -1..0, expected 0..1"),
        (ONE + 1, False, "lie in 1..3, expected 0..2"),
        (
            ONE + 1,
            False,
            "0..2 (classes start at 0, not at 1; for more of them pass num_classes=4)",
        ),
        (ONE.clamp(max=0), False, None),
        (
            torch.arange(4),
            False,
            "0..2 (classes start at 0; for more of them pass num_classes=4 or",
        ),
        (
            ONE - 1,
            False,
            "lie in -1..1, expected 0..2 (classes start at 0: leave out examples without one)",
        ),
        (2 * ONE, False, "0..2 (classes start at 0; for more of them pass num_classes=5 or more)"),
        (ONE[:, None], False, "expected (4,) of torch.int64 (take .squeeze(1))"),
        (SEVERAL, False, "(one-hot: take .argmax(1); several labels each: multi_label=True)"),
        (ONE, True, "(of one class each: leave out multi_label)"),
        (torch.tensor(1), False, "have shape () of torch.int64, expected (1,) of torch.int64"),
    ],
)
def test_wrong_labels_are_described(
    labels: Tensor, multi_label: bool, sentence: str | None
) -> None:
    problem = wrong_labels(labels, 3, multi_label=multi_label)
    assert problem == sentence or (
        sentence is not None and problem is not None and sentence in problem
    )


def test_rows_of_other_numbers_than_0_and_1_are_no_one_hot_labels() -> None:
    problem = wrong_labels(2 * SEVERAL, 3, multi_label=False)
    assert problem == "have shape (4, 3) of torch.int64, expected (4,) of torch.int64"


def test_in_the_u_shape_the_tail_says_how_many_classes_there_are() -> None:
    problem = wrong_labels(ONE + 1, 3, multi_label=False, remedy="tail")
    assert problem is not None
    assert "for more of them give the tail 4 logits)" in problem
    problem = wrong_labels(2 * SEVERAL, 3, multi_label=False, remedy="tail")
    assert problem is not None
    assert problem.endswith(" (one-hot: take .argmax(1))")


def test_ids_have_no_remedy() -> None:
    problem = wrong_labels(ONE + 1, 3, multi_label=False, remedy="none")
    assert problem == "lie in 1..3, expected 0..2"
    problem = wrong_labels(ONE[:, None], 3, multi_label=False, remedy="none")
    assert problem == "have shape (4, 1) of torch.int64, expected (4,) of torch.int64"


def test_what_is_no_class_is_a_row_of_zeros() -> None:
    labels = torch.tensor([0, 3, 2, -1, 2**62])
    rows = known_rows(labels, 3, torch.float32)
    assert rows.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    several = torch.tensor([[0, 1, 2], [-1, 1, 0]])
    assert known_rows(several, 3, torch.float64).tolist() == [[0, 1, 0], [0, 1, 0]]
    assert torch.equal(known_rows(ONE, 3, torch.float32), target_rows(ONE, 3, torch.float32))


@pytest.mark.parametrize("remedy", ["num_classes", "tail"])
def test_what_a_server_may_read_shows_no_label(remedy: Remedy) -> None:
    texts = {
        wrong_labels(wrong, 3, multi_label=False, remedy=remedy, shown=False)
        for wrong in (ONE + 1, ONE + 7, ONE - 1)
    }
    (problem,) = texts
    more = "give the tail more logits" if remedy == "tail" else "pass a larger num_classes"
    assert problem == f"are not all in 0..2 (classes start at 0; for more of them {more})"


def test_the_remedy_for_labels_of_the_u_shape_does_not_depend_on_them() -> None:
    problems = {
        wrong_labels(rows, 3, multi_label=False, remedy="tail") for rows in (SEVERAL, 2 * SEVERAL)
    }
    assert len(problems) == 1
