"""Pairs of sentences, prompts of two columns, and files of JSON: what becomes a row."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts import files
from flwr_splitmix.data.texts.columns import TextColumns
from flwr_splitmix.data.texts.partition import text_split
from flwr_splitmix.data.texts.sets import load_text_sets

MRPC = TextColumns(text="#1 String", second="#2 String", label="Quality")
RTE = TextColumns(text="sentence1", second="sentence2")
CODE = TextColumns(question="instruction", second="input", answer="output")


def written(path: Path, content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize("name", ["msr_paraphrase_train.txt", "train.tsv"])
def test_mrpc_in_its_own_layout(name: str, tmp_path: Path) -> None:
    # A byte order mark, lines that end in CR LF, and quotes that quote nothing.
    rows = [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t702876\t702977\t"It rains, he said.\tHe said: "it rains".',
        "0\t2108705\t2108831\tShares rose.\tShares fell, by 2 %.",
    ]
    path = written(tmp_path / name, "\r\n".join(rows) + "\r\n")
    rows_read = load_text_sets(path, "classification", columns=MRPC, test=path).train
    assert rows_read.texts == ('"It rains, he said.', "Shares rose.")
    assert rows_read.seconds == ('He said: "it rains".', "Shares fell, by 2 %.")
    assert list(rows_read.labels) == [1, 0]


def test_rte_names_its_classes(tmp_path: Path) -> None:
    lines = ["index\tsentence1\tsentence2\tlabel"]
    lines += [f"{i}\tp{i}\th{i}\t{('not_entailment', 'entailment')[i % 2]}" for i in range(40)]
    path = written(tmp_path / "train.tsv", "\n".join(lines))
    sets = load_text_sets(path, "classification", columns=RTE)
    assert sets.classes == ("entailment", "not_entailment")
    for part in (sets.train, sets.test):
        for text, second, label in zip(part.texts, part.seconds, part.labels, strict=True):
            assert text[1:] == second[1:]
            assert sets.classes[label] == ("not_entailment", "entailment")[int(text[1:]) % 2]


def test_pairs_stay_together_when_they_are_divided(tmp_path: Path) -> None:
    rows = [{"sentence1": f"p{i}", "sentence2": f"h{i}", "label": i % 2} for i in range(50)]
    path = written(tmp_path / "rows.json", rows)
    sets = load_text_sets(path, "classification", columns=RTE)
    parts = [text_split(sets, client, 3)[0] for client in range(3)]
    pairs = [pair for part in parts for pair in zip(part.texts, part.seconds, strict=True)]
    assert sorted(pairs) == sorted(zip(sets.train.texts, sets.train.seconds, strict=True))
    assert all(text[1:] == second[1:] for text, second in pairs)


def test_an_input_follows_its_instruction_where_there_is_one(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Sort the list.", "input": "3, 1, 2", "output": "1, 2, 3"},
        {"instruction": "Print a name.", "input": "", "output": 'print("a")'},
    ]
    path = written(tmp_path / "rows.json", rows)
    read = load_text_sets(path, "generation", columns=CODE, test=path).train
    assert read.texts == ("Sort the list.\n3, 1, 2", "Print a name.")
    assert read.answers == ("1, 2, 3", 'print("a")')
    assert read.seconds == ()


def test_a_list_of_strings_has_a_line_for_each(tmp_path: Path) -> None:
    rows = [{"question": ["A | in | B", "B | in | C"], "answer": "A is in B, which is in C."}]
    path = written(tmp_path / "rows.jsonl", json.dumps(rows[0]))
    read = load_text_sets(path, "generation", test=path).train
    assert read.texts == ("A | in | B\nB | in | C",)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_json_file_is_a_list_or_holds_one(wrapped: bool, tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a"}]
    content = {"version": "3.0", "values": rows} if wrapped else rows
    path = written(tmp_path / "rows.json", content)
    assert load_text_sets(path, "generation", test=path).train.answers == ("a",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1", "rows.json is not JSON"),
        ({"train": [], "test": []}, "holds 2 lists of rows; it must be one list of objects"),
        ({"a": 1}, "holds no lists of rows"),
        ([1], "item 1 of .*rows.json is not a JSON object"),
        ([{"question": "q"}], "item 1 of .*rows.json has no column 'answer'; it has 'question'"),
        ([], "holds no row"),
        (
            [{"question": ["q", 1], "answer": "a"}],
            r"row 1 of .* in column 'question' no text but \['q', 1\]",
        ),
    ],
)
def test_a_json_file_that_holds_no_rows_is_one_clear_error(
    content: Any, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.json", content)
    with pytest.raises(DataError, match=message) as caught:
        load_text_sets(path, "generation", test=path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["sentence1", "sentence2", "label", "source"])
def test_half_a_character_is_refused_before_a_tokenizer_reads_it(
    column: str, tmp_path: Path
) -> None:
    good = {"sentence1": "a \U0001f600", "sentence2": "b", "label": "c", "source": "d"}
    path = written(tmp_path / "rows.json", [good, good | {column: "a \ud83d"}])
    columns = TextColumns("sentence1", second="sentence2", group="source")
    with pytest.raises(DataError) as caught:
        load_text_sets(path, "classification", columns=columns, test=path)
    assert str(caught.value) == (
        f"row 2 of {path!r} has in column {column!r} half a character, '\\ud83d', at place 3; "
        "write the whole character, or remove it"
    )


def test_a_pair_needs_both_sentences(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "", "label": 0}]
    path = written(tmp_path / "rows.json", rows)
    with pytest.raises(DataError, match=r"row 1 of .* has in column 'sentence2' an empty text"):
        load_text_sets(path, "classification", columns=RTE, test=path)


def test_rows_with_an_empty_text_are_refused_or_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": q, "answer": a} for q, a in (("", "a"), ("q", "b"), (None, "c"))]
    path = written(tmp_path / "rows.json", rows)
    with pytest.raises(DataError, match=r"row 1 of .* has in column 'question' an empty text"):
        load_text_sets(path, "generation", test=path)
    caplog.set_level("WARNING", logger="flwr.splitmix")
    sets = load_text_sets(path, "generation", test=path, empty_texts="drop")
    assert (sets.train.texts, sets.train.answers) == (("q",), ("b",))
    assert "2 of 3 rows" in caplog.text
    nothing = written(tmp_path / "nothing.json", [rows[0]])
    with pytest.raises(DataError, match=r"no row of .* has a text in 'question' and 'answer'"):
        load_text_sets(nothing, "generation", test=nothing, empty_texts="drop")


def test_a_json_file_may_have_a_row_on_each_line(tmp_path: Path) -> None:
    """So `datasets` writes a set, whatever the name says."""
    rows = [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(3)]
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    path = written(tmp_path / "rows.json", lines)
    read = load_text_sets(path, "generation", columns=CODE, test=path).train
    assert (read.texts, read.answers) == (("i0", "i1", "i2"), ("o0", "o1", "o2"))
    broken = written(tmp_path / "broken.json", lines + '{"instruction": ')
    with pytest.raises(DataError, match=r"line 4 of .*broken\.json is not JSON"):
        load_text_sets(broken, "generation", columns=CODE)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_line_may_have_so_many_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a line of 1 GiB, packed to 1 MB, Python would make strings of 7 GB."""
    monkeypatch.setattr(files, "MAX_READ", 1000)
    monkeypatch.setattr(files, "_CHUNK_BYTES", 7)
    write = gzip.open if name.endswith(".gz") else open
    with write(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write("text\n" + f"{'a' * 990}\n" * 3)
    assert files.read_columns(tmp_path / name, ["text"]) == {"text": ["a" * 990] * 3}
    with write(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write("text\n" + "a" * 2000)
    with pytest.raises(DataError, match=rf"{name} has a line of more than 1000 bytes"):
        files.read_columns(tmp_path / name, ["text"])


@pytest.mark.usefixtures("impatient")
def test_a_pipe_holds_no_texts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(DataError, match=r"rows\.csv cannot be read: it is not a regular file"):
        files.read_columns(tmp_path / "rows.csv", ["text"])
