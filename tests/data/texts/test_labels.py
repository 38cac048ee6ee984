"""Labels as classes: whole numbers in any form, words, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.sets import load_text_sets


def written(path: Path, *labels: Any) -> str:
    rows = [{"sentence": f"t{i}", "label": label} for i, label in enumerate(labels)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "values",
    [[True, False], [1.0, 0.0], ["1", "0"], [1, 0], ["1.0", "0.0"], ["01", "+0"], [" 1", "0 "]],
)
def test_whole_numbers_count_for_themselves(values: list[Any], tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *values * 5)
    other = written(tmp_path / "b.jsonl", 0, "1")
    sets = load_text_sets(path, "classification", test=other)
    assert list(sets.train.labels) == [1, 0] * 5
    assert list(sets.test.labels) == [0, 1]
    assert sets.classes == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([2], "row 1 .* label 2; the head has 2 classes: 0 and 1; .* labels begin with 0"),
        ([1, 2, 1, 2], "row 2 .* label 2; .* begin with 0, and num-labels says how many"),
        ([1, -1], "row 2 .* label -1; .* 2 classes: 0 and 1; .* begin with 0"),
        (["+1", "-1"], "row 2 .* label '-1'; .* 2 classes: 0 and 1; .* begin with 0"),
        ([0, float("nan")], "row 2 of .* in column 'label' no label but nan; each row must"),
        (["no", "yes", None], "row 3 of .* in column 'label' no label but None; each row must"),
        ([0, ""], "row 2 of .* 'label' no label but ''"),
        ([[1, 0]], r"row 1 .* label but \[1, 0\]"),
        (["1", ["1"]], r"row 2 of .* in column 'label' no label but \['1'\]; each row must"),
        ([{"a": 1}], r"row 1 of .* in column 'label' no label but {'a': 1}; each row must"),
        (["0", "1", "one"], "has whole numbers as labels, and beside them 'one'; either all"),
        ([0, 0.5], r"as labels numbers such as 0\.5; expected words or whole"),
        ([0.5, 1.5], r"such as 0\.5; .* words or whole numbers \(regression is not offered"),
        (
            ["-.5", "1e-05"],
            r"such as -\.5; expected .* if they name classes, write v-\.5,",
        ),
        ([0, "0.5", "x"], "beside them '0.5' and 'x'; either all must be whole numbers"),
        ([*"abcdef"], r"has 6 labels \('a', 'b', 'c', 'd', 'e' and 1 more\), but the head"),
        (
            ["a", "b", "c"],
            r"has 3 labels \('a', 'b' and 'c'\), but the head has 2 classes; num-labels",
        ),
    ],
)
def test_labels_that_are_no_classes_are_one_clear_error(
    labels: list[Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.jsonl", *labels)
    with pytest.raises(DataError, match=message) as caught:
        load_text_sets(path, "classification", test=path)
    assert "\n" not in str(caught.value)


def test_a_word_that_only_the_test_part_has_is_no_class(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "no", "yes")
    other = written(tmp_path / "b.jsonl", "maybe")
    with pytest.raises(DataError, match=r"test file .* 'maybe'; .*: no and yes; no row of the"):
        load_text_sets(path, "classification", test=other)


def test_words_are_no_classes_where_every_node_would_number_its_own(tmp_path: Path) -> None:
    words = written(tmp_path / "a.jsonl", *["negative", "positive"] * 5)
    with pytest.raises(DataError, match=r"'negative'; .* own dataset .* whole numbers, 0 to 2"):
        load_text_sets(words, "classification", num_labels=3, own=True)
    numbers = written(tmp_path / "b.jsonl", *[0, 2] * 5)
    sets = load_text_sets(numbers, "classification", num_labels=3, own=True)
    assert {*sets.train.labels, *sets.test.labels} == {0, 2}


def test_a_nodes_own_test_rows_are_the_same_in_every_run(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *[0, 1] * 20)
    sets = [load_text_sets(path, "classification", seed=seed, own=True) for seed in range(4)]
    assert len({each.test.texts for each in sets}) == 1
    assert len(sets[0].test) == 4
