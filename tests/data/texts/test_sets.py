"""Labelled texts from every kind of source, and the errors of wrong ones."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.columns import TextColumns
from flwr_splitmix.data.texts.generated import (
    ADJECTIVES,
    ADVERBS,
    NOUNS,
    NUMBERS,
    PLACES,
    TEST,
    TRAIN,
    VERBS,
    generated_public,
    generated_sets,
)
from flwr_splitmix.data.texts.sets import load_text_sets

SHARED = Path(__file__).parents[4] / "shared" / "data"
COLA = TextColumns(text="4", label="2", group="1")

Writer = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Return a function that writes a file and says where."""

    def made(name: str, content: str | bytes) -> str:
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return made


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def test_cola_as_it_is_published() -> None:
    if not (SHARED / "cola").is_dir():
        pytest.skip("CoLA is not at ../shared/data/cola")
    sets = load_text_sets(
        str(SHARED / "cola" / "in_domain_train.tsv"),
        "classification",
        columns=COLA,
        test=str(SHARED / "cola" / "out_of_domain_dev.tsv"),
    )
    assert (len(sets.train), int(sets.train.labels.sum())) == (8551, 6023)
    assert (len(sets.test), int(sets.test.labels.sum())) == (516, 354)
    assert len(set(sets.train.groups)) == 17
    assert sets.classes == ("0", "1")
    assert sets.train.texts[1] == "One more pseudo generalization and I'm giving up."


def test_gsm8k_as_it_is_published() -> None:
    if not (SHARED / "gsm8k").is_dir():
        pytest.skip("GSM8K is not at ../shared/data/gsm8k")
    sets = load_text_sets(
        str(SHARED / "gsm8k" / "train.jsonl.gz"),
        "generation",
        test=str(SHARED / "gsm8k" / "test.jsonl.gz"),
    )
    assert (len(sets.train), len(sets.test)) == (7473, 1319)
    assert sets.train.texts[0].startswith("Natalia sold clips to 48 of her friends in April")
    assert sets.train.answers[0].endswith("\n#### 72")
    assert (sets.classes, sets.task, len(sets.train.labels)) == ((), "generation", 0)


def test_a_quote_in_a_tsv_is_a_letter(write: Writer) -> None:
    rows = 'x\t1\t\t"Yes\ny\t0\t*\tHe said "no".\n' * 10
    sets = load_text_sets(write("a.tsv", rows), "classification", columns=COLA)
    assert set(sets.train.texts) == {'"Yes', 'He said "no".'}


def test_a_quote_in_a_csv_quotes(write: Writer) -> None:
    rows = "label,sentence\n" + '1,"a, ""b"""\n' * 10
    sets = load_text_sets(write("a.csv", rows), "classification")
    assert set(sets.train.texts) == {'a, "b"'}
    assert set(sets.train.labels) == {1}


@pytest.mark.parametrize(("name", "comma"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_a_text_may_be_very_long(write: Writer, name: str, comma: str) -> None:
    text = "word " * 40_000
    path = write(name, f"sentence{comma}label\n" + f"{text}{comma}1\n" * 2)
    assert load_text_sets(path, "classification", test=path).train.texts == (text, text)


def test_empty_columns_at_the_end_of_a_line_say_nothing(write: Writer) -> None:
    path = write("a.csv", "label,sentence\n1,a,,\n0,b\n")
    assert load_text_sets(path, "classification", test=path).train.texts == ("a", "b")


def test_a_key_that_one_object_lacks_is_null_there(write: Writer) -> None:
    rows = [{"question": f"q{i}"} | ({"answer": "a"} if i else {}) for i in range(3)]
    path = write("a.jsonl", lines(*rows))
    sets = load_text_sets(path, "generation", test=path, empty_texts="drop")
    assert sets.train.texts == ("q1", "q2")
    with pytest.raises(DataError, match=r"row 1 of .* in column 'answer' no text; .*'drop'"):
        load_text_sets(path, "generation", test=path)


@pytest.mark.parametrize("last", ["y", "z"])
def test_test_rows_that_are_the_training_rows_are_warned_of(
    write: Writer, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Accuracy would be that on training rows."""
    path, other = (
        write(name, f"sentence\tlabel\nx\t0\n{text}\t1\n")
        for name, text in (("a.tsv", "y"), ("b.tsv", last))
    )
    load_text_sets(path, "classification", test=other)
    message = f"the test file {other!r} has the same rows as the training part, so accuracy will"
    assert (message in caplog.text) is (last == "y")


def test_the_training_split_as_test_split_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_dict({"sentence": ["x", "y"], "label": [0, 1]})
    datasets.DatasetDict(train=split).save_to_disk(str(tmp_path / "set"))
    load_text_sets(str(tmp_path / "set"), "classification", test="train")
    assert "the test part of" in caplog.text
    assert "has the same rows as the training part" in caplog.text


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_columns_by_name(write: Writer, name: str) -> None:
    rows = "source\tlabel\tsentence\n" + "".join(f"s{i}\t{i % 2}\ttext {i}\n" for i in range(20))
    columns = TextColumns(group="source")
    sets = load_text_sets(write(name, rows), "classification", columns=columns)
    for part in (sets.train, sets.test):
        for text, label, group in zip(part.texts, part.labels, part.groups, strict=True):
            number = int(text.split()[1])
            assert (label, group) == (number % 2, f"s{number}")


def test_a_tenth_of_a_file_is_held_out_and_nothing_is_lost(write: Writer) -> None:
    path = write("a.jsonl", lines(*({"question": f"q{i}", "answer": f"a{i}"} for i in range(50))))
    sets = load_text_sets(path, "generation", seed=3)
    assert (len(sets.train), len(sets.test)) == (45, 5)
    assert {*sets.train.texts, *sets.test.texts} == {f"q{i}" for i in range(50)}
    assert load_text_sets(path, "generation", seed=4).test.texts != sets.test.texts


def test_labels_in_words_count_in_sorted_order(write: Writer) -> None:
    rows = [{"sentence": f"t{i}", "label": ("no", "maybe", "yes")[i % 3]} for i in range(30)]
    sets = load_text_sets(write("a.jsonl", lines(*rows)), "classification", num_labels=4)
    assert sets.classes[:3] == ("maybe", "no", "yes")
    named = {text: rows[int(text[1:])]["label"] for text in sets.train.texts}
    assert [sets.classes[i] for i in sets.train.labels] == list(named.values())


def split(n: int, *names: str) -> datasets.Dataset:
    """Return rows of two classes, which may have names."""
    label = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    rows = {"text": [f"t{i}" for i in range(n)], "label": [i % 2 for i in range(n)]}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize(
    ("num_labels", "classes"),
    [(2, ("good", "bad")), (3, ("good", "bad", "odd")), (4, ("good", "bad", "odd", "class 3"))],
)
def test_a_saved_datasets_classes_keep_their_names_and_numbers(
    num_labels: int, classes: tuple[str, ...], tmp_path: Path
) -> None:
    """Not 0 and 1, in the exported model either."""
    names, columns = ("good", "bad", "odd"), TextColumns(text="text")
    for kind, test in {"set": split(4, *names), "plain": split(4)}.items():
        saved = datasets.DatasetDict({"train": split(8, *names), "test": test})
        saved.save_to_disk(str(tmp_path / kind))
        sets = load_text_sets(
            str(tmp_path / kind), "classification", columns=columns, num_labels=num_labels
        )
        assert sets.classes == classes
        assert list(sets.train.labels) == [0, 1] * 4


def test_splits_that_number_their_classes_otherwise_are_refused(tmp_path: Path) -> None:
    swapped = {"train": split(8, "good", "bad"), "test": split(4, "bad", "good")}
    saved = datasets.DatasetDict(swapped)
    saved.save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match="are good, bad and the test labels bad, good; both must"):
        load_text_sets(str(tmp_path / "set"), "classification", columns=TextColumns(text="text"))


def test_a_saved_dataset_has_its_own_test_split(tmp_path: Path) -> None:
    named = {"train": split(8, "bad", "good"), "test": split(4, "bad", "good"), "hard": split(3)}
    saved = datasets.DatasetDict(named)
    saved.save_to_disk(str(tmp_path / "set"))
    columns = TextColumns(text="text")
    for test, size in (("", 4), ("hard", 3)):
        sets = load_text_sets(str(tmp_path / "set"), "classification", columns=columns, test=test)
        assert (len(sets.train), len(sets.test)) == (8, size)
        assert list(sets.train.labels) == [0, 1] * 4
    with pytest.raises(DataError, match="has no test split; one named soft is needed"):
        load_text_sets(str(tmp_path / "set"), "classification", columns=columns, test="soft")
    with pytest.raises(DataError, match="has no column 'sentence'; it has 'text' and 'label'"):
        load_text_sets(str(tmp_path / "set"), "classification")


def test_a_test_split_with_secret_labels_is_answered_with_another_one(tmp_path: Path) -> None:
    """GLUE's test splits on the hub have the label -1 in every row."""
    splits = {
        name: datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": labels})
        for name, labels in (("train", [0, 1]), ("test", [-1, -1]), ("validation", [1, 0]))
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "set"))
    source = str(tmp_path / "set")
    with pytest.raises(DataError, match=r"test part .* label -1; .* test-dataset may name another"):
        load_text_sets(source, "classification")
    sets = load_text_sets(source, "classification", test="validation")
    assert list(sets.test.labels) == [1, 0]


def test_a_hub_name_may_have_a_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    class Hub:
        def __init__(self, **options: Any) -> None:
            requests.append((options["dataset"], options["subset"]))

        def load_split(self, name: str) -> datasets.Dataset:
            if name not in ("train", "validation"):
                raise ValueError(name)
            return datasets.Dataset.from_dict({"question": [name], "answer": ["#### 1"]})

    monkeypatch.setattr("flwr_datasets.FederatedDataset", Hub)
    sets = load_text_sets("owner/sums:main", "generation")
    assert (sets.train.texts, sets.test.texts) == (("train",), ("validation",))
    load_text_sets("owner/sums", "generation")
    assert requests == [("owner/sums", "main"), ("owner/sums", None)]
    with pytest.raises(DataError, match="has no test split; one named exam is needed"):
        load_text_sets("owner/sums", "generation", test="exam")


def test_made_up_sentences_are_right_if_their_words_are_in_order() -> None:
    sets = generated_sets("classification")
    assert (len(sets.train), len(sets.test)) == (TRAIN, TEST)
    assert not set(sets.train.texts) & set(sets.test.texts)
    nouns = [noun for kind in NOUNS.values() for noun in kind]

    def one_of(words: Sequence[str], ending: str = "") -> str:
        return rf"({'|'.join(words)}){ending}"

    thing = rf"the {one_of(ADJECTIVES)} (one|many) {one_of(PLACES)} the {one_of(nouns)}s?"
    one = thing.replace("(one|many)", one_of(nouns)) + f" {one_of(VERBS)}s"
    many = thing.replace("(one|many)", one_of(nouns, "s")) + f" {one_of(VERBS)}"
    for text, label in zip(sets.train.texts, sets.train.labels, strict=True):
        right = re.fullmatch(rf"({one}|{many}) {one_of(ADVERBS)} \.", text)
        assert (right is not None) == bool(label), text
    assert 0.45 < sets.train.labels.mean() < 0.55


def test_made_up_sums_are_right() -> None:
    sets = generated_sets("generation")
    for text, answer, group in zip(
        sets.train.texts, sets.train.answers, sets.train.groups, strict=True
    ):
        numbers = [NUMBERS.index(w) for w in text.split() if w in NUMBERS]
        expected = sum(numbers) if group == "finding" else numbers[0] - numbers[1]
        assert answer.endswith(f" is {NUMBERS[expected]} .\n#### {expected}")


@pytest.mark.parametrize("task", ["classification", "generation"])
def test_made_up_text_follows_from_the_seed(task: Any) -> None:
    again = generated_sets(task, seed=1)
    assert generated_sets(task, seed=1).train.texts == again.train.texts
    assert generated_sets(task, seed=2).train.texts != again.train.texts
    assert generated_public(task) == generated_public.__wrapped__(task)
    assert not set(generated_public(task)) & set(generated_sets(task).test.answers)


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * (sys.get_int_max_str_digits() + 1)

WRONG: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("a.csv", "label,sentence\n1,a, b, no\n0,b\n", {}, "line 2 .* 4 .* has 2; quote .*','"),
    (
        "a.csv",
        "1,hello, world\n0,b\n",
        {"columns": TextColumns("2", "1")},
        "line 2 .* has 2 columns, but the first line has 3; quote",
    ),
    ("a.tsv", "label\tsentence\n1\ta\tb\n", {}, "line 2 .* 3 .* has 2; no value can contain a tab"),
    ("a.csv", "label;sentence\n1;a\n", {}, "separated by ',', but here by ';'"),
    ("a.tsv", "1,a\n", {"columns": TextColumns("2", "1")}, "separated by tabs, but here by ','"),
    ("a.tsv", "x\t1\t\ta\nx\t0\t\n", {"columns": COLA}, "line 2 of .* has 3 columns, but column 4"),
    ("a.tsv", "a\tb\n", {}, "has no column 'sentence'; it has 'a' and 'b'; .* counted from 1"),
    ("a.csv", "sentence,label,label\na,0,1\n", {}, "first line .* 2 columns named 'label'"),
    ("a.tsv", "a\tb\n", {"columns": TextColumns("0", "1")}, "there is no column 0 in .* from 1"),
    ("a.tsv", "a\tb\n", {"columns": TextColumns("00", "1")}, "there is no column 0 in .*"),
    (
        "a.tsv",
        "a\tb\n",
        {"columns": TextColumns("9" * 5000, "1")},
        r"first line of .* has no column '9{79}; it has '1' and '2'$",
    ),
    ("a.tsv", "", {}, "a.tsv holds no row"),
    ("a.tsv", b"\xff\xfe\x00", {}, "not UTF-8: byte 0 begins UTF-16; save .* as UTF-8"),
    ("a.tsv", "café".encode("latin-1"), {}, "not UTF-8: byte 3 is no part of it; save .* as UTF-8"),
    ("a.parquet", "", {}, "ends in '.parquet'; .* files that end in .tsv, .txt, .csv"),
    ("a.arrow", b"ARROW1\xff", {}, "ends in '.arrow'; .* files that end in .tsv, .txt, .csv"),
    ("a.csv", "x" * 10**6, {}, r"it has 'x{60}\.\.\.'; of a file without names"),
    ("a.csv", ",".join("x" * 10**5), {}, r"it has ('x', ){19}'x' and 99980 more; of a file"),
    ("a.jsonl", lines({"x" * 10**6: 1}), {}, r"it has 'x{60}\.\.\.'$"),
    ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence": ', {}, "line 2 of .* is not JSON"),
    ("a.jsonl", "[1]\n", {}, "line 1 of .* is not a JSON object"),
    ("a.jsonl", f"{{}}\n{DEEP}\n", {}, r"line 2 of .*a\.jsonl has lists or objects too deep"),
    ("a.json", DEEP, {}, r"^\S*a\.json has lists or objects too deep"),
    ("a.jsonl", f"{{}}\n{LONG}\n", {}, r"line 2 of .*a\.jsonl has a whole number of more than"),
    ("a.json", LONG, {}, r"^\S*a\.json has a whole number of more than \d+ digits; write it as"),
    ("a.jsonl", lines({"sentence": "a"}), {}, "line 1 of .* has no column 'label'; it has"),
    ("a.jsonl", lines({"sentence": 3, "label": 1}), {}, "no text but 3; .* quotes around it: .3."),
    ("a.jsonl", lines({"sentence": " ", "label": 1}), {}, "row 1 of .* an empty text"),
    ("a.jsonl", lines({"sentence": "a", "label": 1}), {}, "has 1 row, too few to hold a tenth"),
    (
        "a.jsonl",
        lines({"sentence": "a", "label": 1}),
        {"test": "nowhere.tsv"},
        "there is no file 'nowhere.tsv' of test rows",
    ),
    ("a.jsonl", lines({"sentence": "a", "label": 1}), {"num_labels": 1}, "num_labels is 1; at"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "options", "message"), WRONG, ids=[w[3] for w in WRONG]
)
def test_what_is_wrong_is_one_clear_error(
    write: Writer, name: str, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    path = write(name, content)
    with pytest.raises(DataError, match=message) as caught:
        load_text_sets(path, "classification", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff", b"[1]\n", lines({"sentence": "", "label": 1})])
def test_what_is_wrong_with_test_rows_names_their_file(write: Writer, content: str | bytes) -> None:
    good = write("good.jsonl", lines({"sentence": "a", "label": 1}))
    bad = write("bad.jsonl", content)
    with pytest.raises(DataError, match=r"bad\.jsonl") as caught:
        load_text_sets(good, "classification", test=bad)
    assert "good.jsonl" not in str(caught.value)


@pytest.mark.parametrize("source", ["", "cola", "/nowhere/train.tsv"])
def test_a_source_that_is_not_there_is_answered_with_what_can_be(source: str) -> None:
    with pytest.raises(
        DataError, match=r"no text dataset .*'generated', a file that ends in \.tsv"
    ):
        load_text_sets(source, "classification")


def test_an_unknown_task_is_named() -> None:
    task: Any = "translation"
    with pytest.raises(DataError, match="'translation'; it must be one of classification"):
        load_text_sets("generated", task)


def test_a_subset_keeps_its_columns_together() -> None:
    rows = generated_sets("generation").train
    chosen = rows.subset(np.array([5, 2]))
    assert chosen.texts == (rows.texts[5], rows.texts[2])
    assert chosen.answers == (rows.answers[5], rows.answers[2])
    assert chosen.groups == (rows.groups[5], rows.groups[2])
