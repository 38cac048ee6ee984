"""A client of apps/language says what is wrong with its texts or its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from flwr_splitmix.apps.language.texts import (
    client_rows,
    public_set,
    public_texts,
    text_sets,
    tokenizer_of,
)
from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.tokenizers import train_tokenizer
from tests.apps.language_app import TINY, client, read


def rows(path: Path, *texts: dict[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in texts), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset": "cola"}, "no text dataset 'cola': use 'generated'"),
        (
            {"dataset": "FILE"},
            "question-column is 'question', but line 1 of .* it has 'sentence' and 'label'",
        ),
        (
            {"dataset": "FILE", "task": "classification", "second_text_column": "sentence2"},
            "second-text-column is 'sentence2', but line 1 of .* it has 'sentence' and 'label'",
        ),
        (
            {"dataset": "EMPTY_ANSWER"},
            "row 2 of .* in column 'answer' an empty text; .* left out .empty-texts='drop'.",
        ),
        (
            {"dataset": "FILE", "task": "classification"},
            "row 2 of .* has the label 2; the head has 2 classes: 0 and 1",
        ),
        (
            {"public": "/nowhere"},
            "run-config: public is '/nowhere', but there is no public text '/nowhere'",
        ),
        (
            {"public": "EMPTY"},
            "run-config: public is .*, but .* holds no paragraph of at least 4 words",
        ),
        (
            {"dataset": "FILE", "test_dataset": "/nowhere.tsv", "task": "classification"},
            "run-config: test-dataset is '/nowhere.tsv', but there is no file '/nowhere.tsv' of",
        ),
        (
            {"dataset": "ANSWERED", "test_dataset": "EMPTY_ANSWER"},
            "run-config: test-dataset is '.*answers.jsonl', but row 2 of the test file '.*answers",
        ),
        ({"samples_per_client": 1500}, "client 0 of 2 has 1000 training rows .* than the 1500"),
        (
            {"max_length": 20, "long_texts": "refuse"},
            r"text 0 has \d+ tokens, but at most 18 are allowed; raise max-length, or .*'cut'",
        ),
        ({"client_device": "gpu"}, "device 'gpu' is not available here"),
        (
            {"max_length": 9, "long_texts": "drop"},
            "no training data: none of its 8 rows has at most 7 tokens .max-length is 9, .* raise",
        ),
        (
            {"dataset": "SEMICOLONS", "task": "classification"},
            "run-config: text-column .* the first line of .* separated by ',', but here by ';'",
        ),
    ],
)
def test_a_client_says_what_is_wrong_with_its_texts(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").write_text("two words", encoding="utf-8")
    answered = ({"question": "who?", "answer": answer} for answer in ("a dog", "", "a cat"))
    (tmp_path / "semicolons.csv").write_text("sentence;label\na;1\n", encoding="utf-8")
    labelled = ({"sentence": "a b c", "label": label} for label in (0, 2, 1))
    files = {
        "FILE": rows(tmp_path / "rows.jsonl", *labelled),
        "SEMICOLONS": str(tmp_path / "semicolons.csv"),
        "EMPTY": str(tmp_path / "empty.txt"),
        "ANSWERED": rows(tmp_path / "answered.jsonl", {"question": "who?", "answer": "a dog"}),
        "EMPTY_ANSWER": rows(tmp_path / "answers.jsonl", *answered),
    }
    values = {key: files.get(str(value), value) for key, value in wrong.items()}
    with pytest.raises((ValueError, RuntimeError), match=message) as caught:
        client(0, 2, **{**TINY, **values})
    assert "\n" not in str(caught.value)


def test_a_generated_answer_is_scored_against_the_whole_right_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="flwr.splitmix")
    answers = ["so it is " * (1 + 60 * (i % 2)) + f"\n#### {i}" for i in range(8)]
    examples = [{"question": "why?", "answer": answer} for answer in answers]
    path = rows(tmp_path / "a.jsonl", *examples)
    values = {**TINY, "dataset": path, "test_dataset": path, "test_samples_per_client": 0}
    values |= {"max_length": 100, "generation_scores": True}
    one = client(0, 1, **values)
    decode = tokenizer_of(read(**values)).decode
    tests: Any = one.tests["federated"]
    right = {decode(t[t >= 0], skip_special_tokens=True).strip() for t in tests.labels}
    assert right == {answer.strip() for answer in answers[::2]}
    assert one.batches.examples == 8
    assert "4 left out (generation-scores needs whole answers)" in caplog.text
    with pytest.raises(
        DataError, match=r"generation-scores is true, but no test row .* max-length"
    ):
        client(0, 1, **{**values, "test_dataset": rows(tmp_path / "long.jsonl", *examples[1::2])})


def test_rows_of_a_node_are_said_to_be_the_nodes() -> None:
    node = {"dataset": "/nowhere.tsv"}
    with pytest.raises(DataError, match=r"^node-config: dataset is '/nowhere\.tsv', but there is"):
        client_rows(read(**TINY), node)


def test_a_class_has_one_number_on_all_nodes_that_have_their_own_rows(tmp_path: Path) -> None:
    config = read(**TINY, task="classification", num_labels=3)
    label_of_text: dict[str, int] = {}
    for words in (("bad", "good"), ("so so", "good")):
        numbers = {"bad": 0, "so so": 1, "good": 2}
        examples = [{"sentence": words[i % 2], "label": words[i % 2]} for i in range(20)]
        node = {"dataset": rows(tmp_path / "words.jsonl", *examples)}
        with pytest.raises(DataError, match=r"node-config: .* own dataset must be whole numbers"):
            client_rows(config, node)
        path = rows(
            tmp_path / f"{words[0]}.jsonl", *({**r, "label": numbers[r["label"]]} for r in examples)
        )
        train, _ = client_rows(config, {"dataset": path})
        for text, label in zip(train.texts, train.labels.tolist(), strict=True):
            assert label_of_text.setdefault(text, label) == label
    assert len(set(label_of_text.values())) == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_no_run_tests_on_a_row_that_another_trains_on(seed: int, tmp_path: Path) -> None:
    """A server may ask for test texts over and over: they must stay a tenth."""
    path = rows(tmp_path / "own.jsonl", *({"question": f"q{i}", "answer": "a"} for i in range(40)))
    values = {**TINY, "samples_per_client": 0, "test_samples_per_client": 0}
    first, other = (client_rows(read(**values, seed=s), {"dataset": path}) for s in (0, seed))
    assert not set(first[0].texts) & set(other[1].texts)


PROMPTED = {"task": "generation", "question_column": "text0", "answer_column": "text1"}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_no_run_tests_on_a_row_that_another_trains_on_by_other_columns(
    suffix: str, tmp_path: Path
) -> None:
    """A server that leaves other rows out, or takes the names for a row, tests the same tenth."""
    names, empty = ["label", *(f"text{i}" for i in range(6))], np.random.default_rng(0)
    of_rows = [
        {"label": n % 2} | {name: f"{n}." * (empty.random() > 0.1) for name in names[1:]}
        for n in range(80)
    ]
    path = tmp_path / f"own{suffix}"
    if suffix == ".jsonl":
        rows(path, *of_rows)
    else:
        lines = [names, *(map(str, row.values()) for row in of_rows)]
        path.write_text("\n".join("\t,"[suffix == ".csv"].join(line) for line in lines))
    changes: list[dict[str, Any]] = [{"second_text_column": name} for name in names[2:]]
    changes += [{"text_column": name} for name in names[2:]] + [PROMPTED]
    if suffix != ".jsonl":
        changes += [{"task": "generation", "question_column": "2", "answer_column": "3"}]
    common = {"task": "classification", "text_column": "text0", "empty_texts": "drop"}
    whole = {**TINY, "samples_per_client": 0, "test_samples_per_client": 0, **common}
    trained, tested = set[str](), set[str]()
    for change in ({}, *changes):
        train, test = client_rows(read(**{**whole, **change}), {"dataset": str(path)})
        trained |= {text.split(".")[0] for text in train.texts}
        tested |= {text.split(".")[0] for text in test.texts}
    assert not trained & tested
    assert len(tested) == 8


def test_a_line_that_others_may_take_for_names_is_not_held_out(tmp_path: Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text("".join(f"{i % 2}\tt{i}\n" for i in range(41)), encoding="utf-8")
    values = {**TINY, "task": "classification", "samples_per_client": 0}
    (named, tested), (numbered, other) = (
        client_rows(read(**values, text_column=text, label_column=label), {"dataset": str(path)})
        for text, label in (("t0", "0"), ("2", "1"))
    )
    assert tested.texts == other.texts
    assert ("t0", *named.texts) == numbered.texts


def test_a_tenth_of_which_no_row_is_left_is_named_with_its_remedy(tmp_path: Path) -> None:
    examples = [{"question": f"{i}", "answer": "a"} for i in range(20)]
    path = rows(tmp_path / "whole.jsonl", *examples)
    values = {**TINY, "samples_per_client": 0, "empty_texts": "drop"}
    _, test = client_rows(read(**values), {"dataset": path})
    for name, of_tests in (("test", True), ("train", False)):
        some = [
            {**row, "answer": "a" * ((row["question"] in test.texts) != of_tests)}
            for row in examples
        ]
        node = {"dataset": rows(tmp_path / f"{name}.jsonl", *some)}
        begin = "the tenth" if of_tests else "all but the tenth"
        with pytest.raises(
            DataError,
            match=rf"^node-config: dataset is '.*', but {begin} .*\(test-dataset\), or fill",
        ):
            client_rows(read(**values), node)


def test_rows_without_an_answer_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    answered = [{"question": f"who {i}?", "answer": "a dog" * (i % 2)} for i in range(8)]
    path = rows(tmp_path / "answers.jsonl", *answered)
    values = {**TINY, "dataset": path, "test_dataset": path, "samples_per_client": 0}
    assert client(0, 1, **values, empty_texts="drop").batches.examples == 4


def test_pairs_of_rte_go_to_the_model_as_its_tokenizer_puts_them_together(tmp_path: Path) -> None:
    labels = ("entailment", "not_entailment")
    lines = ["index\tsentence1\tsentence2\tlabel"]
    lines += [f"{i}\tA dog {i} sleeps.\tDog {i} waits.\t{labels[i % 2]}" for i in range(8)]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    values = {
        **TINY,
        "task": "classification",
        "dataset": str(path),
        "test_dataset": str(path),
        "text_column": "sentence1",
        "second_text_column": "sentence2",
    }
    data = client(0, 1, **values).batches.data
    tokenizer = tokenizer_of(read(**values))
    pairs = {
        (tokenizer.decode(data[i][0], skip_special_tokens=False), int(data[i][1])) for i in range(8)
    }
    assert pairs == {(f"<end>A dog {i} sleeps.<end>Dog {i} waits.", i % 2) for i in range(8)}


def gpt2(folder: Path, vocab_size: int) -> Any:
    """Write a small GPT-2 into a folder; returns a tokenizer for it that is not written yet."""
    small = GPT2Config(
        vocab_size=vocab_size, n_embd=16, n_layer=3, n_head=2, n_positions=128,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    GPT2LMHeadModel(small).save_pretrained(folder)
    return train_tokenizer(generated_public("generation"), 300)


def test_a_public_text_without_a_token_is_told_with_its_key(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"<pad>": 0, "Anna": 1}))
    words.pre_tokenizer = Split(Regex(r"[ \d]+"), "removed")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>"
    )
    tokenizer.save_pretrained(tmp_path)
    paragraphs = "Anna " * 20 + "\n\n" + "12 " * 20
    (tmp_path / "public.txt").write_text(paragraphs, encoding="utf-8")
    public = str(tmp_path / "public.txt")
    with pytest.raises(DataError, match=r"run-config: public is '.*public.txt', but text \d of \d"):
        public_set(read(**TINY, model=str(tmp_path), public=public, public_unit="paragraph"))


def test_a_tokenizer_without_padding_token_is_refused(tmp_path: Path) -> None:
    tokenizer = gpt2(tmp_path, 300)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    values = {**TINY, "model": str(tmp_path)}
    with pytest.raises(
        ValueError, match=r"run-config: .* has no padding token; .* padding-token='<end>'"
    ):
        client(0, 2, **values)
    assert client(0, 2, **values, padding_token="<end>").batches.examples == 8
    with pytest.raises(ValueError, match=r"^run-config: padding-token is '<foo>', but"):
        client(0, 2, **values, padding_token="<foo>")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    gpt2(tmp_path, 100).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has 300 tokens, but the model knows 100"):
        client(0, 2, **{**TINY, "model": str(tmp_path)})


def test_a_run_keeps_the_texts_that_it_began_with(tmp_path: Path) -> None:
    """Or some clients of a simulation would train on other rows than the rest."""
    public = tmp_path / "public.txt"
    for word in ("old", "newer"):
        examples = ({"question": f"{word} {i}", "answer": "yes"} for i in range(20))
        source = rows(tmp_path / "rows.jsonl", *examples)
        public.write_text(f"One {word} sentence of words.", encoding="utf-8")
        config = read(dataset=source, public=str(public))
        assert text_sets(config).train.texts[0].startswith("old")
        assert public_texts(config) == ("One old sentence of words.",)


def test_plain_text_is_told_not_to_be_rows(tmp_path: Path) -> None:
    """Its first sentence is no header, and a newcomer looks for no column in it."""
    lines = tmp_path / "lines.txt"
    lines.write_text("The mat is red.\nA cat sits on it.\n", encoding="utf-8")
    message = r"no 'question' \(question-column\): plain text is no data set. .* \.tsv, .*\.jsonl"
    with pytest.raises(DataError, match=message):
        text_sets(read(dataset=str(lines), public="generated"))
    lines.write_text("ask\tanswer\n1 + 1\t2\n", encoding="utf-8")
    with pytest.raises(DataError, match="it has 'ask' and 'answer', of which it must name one"):
        text_sets(read(dataset=str(lines), public="generated"))
