"""Each row of a text set belongs to one client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.generated import generated_sets
from flwr_splitmix.data.texts.partition import text_split
from flwr_splitmix.data.texts.rows import TextRows, TextSets

SENTENCES = generated_sets("classification")
SUMS = generated_sets("generation")


def sources(*names: str) -> TextSets:
    rows = TextRows(
        tuple(f"t{i}" for i in range(len(names))), np.zeros(len(names), np.int64), (), names
    )
    return TextSets(rows, rows.subset(np.arange(0, len(names), 2)), ("0", "1"), "made up")


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "column"])
def test_the_parts_are_disjoint_and_hold_all_rows(scheme: Any) -> None:
    parts = [text_split(SENTENCES, i, 3, scheme=scheme) for i in range(3)]
    for which, whole in enumerate((SENTENCES.train, SENTENCES.test)):
        dealt = [text for part in parts for text in part[which].texts]
        assert sorted(dealt) == sorted(whole.texts)


def test_no_group_is_divided_and_tests_follow() -> None:
    sets = sources(*"abcdeabcde", "e")
    parts = [text_split(sets, i, 2, scheme="column") for i in range(2)]
    assert [sorted(set(train.groups)) for train, _ in parts] == [["a", "c", "e"], ["b", "d"]]
    for train, test in parts:
        assert set(test.groups) <= set(train.groups)


def test_groups_that_no_test_row_has_leave_a_client_without_tests() -> None:
    sets = sources("a", "b")
    assert len(text_split(sets, 1, 2, scheme="column")[1]) == 0


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_clients_without_test_rows_are_allowed(scheme: Any) -> None:
    few = TextSets(SENTENCES.train, SENTENCES.test.first(2), SENTENCES.classes, "few")
    tests = [text_split(few, i, 3, scheme=scheme)[1] for i in range(3)]
    assert sorted(text for test in tests for text in test.texts) == sorted(few.test.texts)


def test_dirichlet_leaves_clients_different_labels() -> None:
    shares = [
        text_split(SENTENCES, i, 4, scheme="dirichlet", alpha=0.1)[0].labels for i in range(4)
    ]
    means = [labels.mean() for labels in shares if len(labels)]
    assert max(means) - min(means) > 0.5


def test_samples_are_the_first_of_a_part() -> None:
    train, test = text_split(SUMS, 1, 4)
    few, tests = text_split(SUMS, 1, 4, samples=7, test_samples=5)
    assert few.texts == train.texts[:7]
    assert tests.answers == test.answers[:5]


@pytest.mark.parametrize(
    ("sets", "options", "message"),
    [
        (SUMS, {"scheme": "dirichlet"}, "'dirichlet' is over labels, .* 'iid' and 'column'"),
        (SENTENCES, {"scheme": "natural"}, "'natural'; it must be one of iid, dirichlet, column"),
        (SENTENCES, {"samples": 700}, "client 0 of 3 has 667 training rows .* fewer than the 700"),
        (SENTENCES, {"samples": -1}, "samples is -1"),
        (
            sources("a", "b"),
            {"scheme": "column"},
            "2 groups, .* 3 clients; use 1 to 2 .--nodes, ",
        ),
        (sources(), {"scheme": "column"}, "needs a column that says where each row"),
        (sources("a", "b"), {}, "training rows of 'made up': 2 samples cannot be divided among 3"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    sets: TextSets, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        text_split(sets, 0, 3, **options)


def test_a_client_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"client 3; .* 0\.\.2: partition-id .*-partitions is 3"):
        text_split(SENTENCES, 3, 3)
