"""The papers' text sets, read from small folders in their public layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.experiments.papers.mixguard_sets import PRINTED
from flwr_splitmix.experiments.texts.corpora import CORPORA, open_corpus
from flwr_splitmix.experiments.texts.recipes import TEXT_RECIPES

Write = Callable[[Path, str], None]


def sst2(folder: Path, split: str) -> None:
    rows = ["sentence\tlabel", *(f'a "{word}" film of {split} \t{i}' for i, word in WORDS)]
    (folder / f"{split}.tsv").write_text("\n".join(rows))


def mrpc(folder: Path, split: str) -> None:
    rows = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    rows += [f'{i}\t1\t2\tThe {word} of {split}\t"The {word}" it was .' for i, word in WORDS]
    (folder / f"{split}.tsv").write_text("\n".join(rows), encoding="utf-8")


def mrpc_by_microsoft(folder: Path, split: str) -> None:
    mrpc(folder, split)
    name = "train" if split == "train" else "test"
    (folder / f"{split}.tsv").rename(folder / f"msr_paraphrase_{name}.txt")


def rte(folder: Path, split: str) -> None:
    rows = ["index\tsentence1\tsentence2\tlabel"]
    labels = ("entailment", "not_entailment")
    rows += [f"{i}\tThe {word} of {split}\tIt is {word} .\t{labels[i]}" for i, word in WORDS]
    (folder / f"{split}.tsv").write_text("\n".join(rows))


def listed(rows: Any, folder: Path, split: str) -> None:
    name = "train" if split == "train" else "test"
    (folder / f"{name}.json").write_text(json.dumps(rows))


def webnlg(folder: Path, split: str) -> None:
    rows = [
        {
            "gem_id": str(i),
            "input": [f"{split} | colour | {word}", f"{word} | kind | colour"],
            "target": f"It is {word}.",
            "references": [f"It is {word}.", f"{word} it is."],
        }
        for i, word in WORDS
    ]
    listed(rows, folder, split)


def samsum(folder: Path, split: str) -> None:
    rows = [
        {"id": str(i), "dialogue": f"A: {word}?\r\nB: {split}", "summary": f"B says {word}."}
        for i, word in WORDS
    ]
    listed([*rows, {"id": "13", "dialogue": "", "summary": "nothing"}], folder, split)


def code_alpaca(folder: Path, split: str) -> None:
    if split == "train":
        rows = [
            {"instruction": f"Say {word}", "input": "twice" * (i % 2), "output": f"print({word})"}
            for i, word in enumerate(("red", "green") * 10)
        ]
        (folder / "code_alpaca_20k.json").write_text(json.dumps(rows))


def gsm8k(folder: Path, split: str) -> None:
    name = "train" if split == "train" else "test"
    lines = [{"question": f"{word} of {split}?", "answer": f"so\n#### {i}"} for i, word in WORDS]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


WORDS = ((0, "red"), (1, "green"))

FIRST: list[tuple[str, Write, tuple[str, str, str]]] = [
    ("sst2", sst2, ('a "red" film of train ', "", "0")),
    ("mrpc", mrpc, ("The red of train", '"The red" it was .', "0")),
    ("mrpc", mrpc_by_microsoft, ("The red of train", '"The red" it was .', "0")),
    ("rte", rte, ("The red of train", "It is red .", "0")),
    ("gsm8k", gsm8k, ("red of train?", "", "so\n#### 0")),
    ("webnlg", webnlg, ("train | colour | red\nred | kind | colour", "", "It is red.")),
    ("samsum", samsum, ("A: red?\r\nB: train", "", "B says red.")),
]


@pytest.mark.parametrize(("name", "write", "first"), FIRST)
def test_a_corpus_is_read_in_its_public_layout(
    name: str, write: Write, first: tuple[str, str, str], tmp_path: Path
) -> None:
    for split in ("train", "dev"):
        write(tmp_path, split)
    sets = open_corpus(str(tmp_path), CORPORA[name])
    assert (len(sets.train), len(sets.test)) == (2, 2)
    first_text, second, target = first
    rows = sets.train
    assert rows.texts[0] == first_text
    assert (rows.seconds or ("",))[0] == second
    assert (rows.answers[0] if rows.answers else str(rows.labels[0])) == target
    assert all("dev" in text for text in sets.test.texts)


def test_a_tenth_of_code_alpacas_one_file_is_held_out(tmp_path: Path) -> None:
    code_alpaca(tmp_path, "train")
    sets = open_corpus(str(tmp_path), CORPORA["codealpaca"])
    assert (len(sets.train), len(sets.test)) == (18, 2)
    assert {*sets.train.texts, *sets.test.texts} == {"Say red", "Say green\ntwice"}


def test_glues_files_of_mrpc_come_before_microsofts(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        mrpc_by_microsoft(tmp_path, split)
    first = open_corpus(str(tmp_path), CORPORA["mrpc"]).train.texts
    (tmp_path / "train.tsv").write_text("Quality\t#1 String\t#2 String\n1\tanother\tone\n")
    assert open_corpus(str(tmp_path), CORPORA["mrpc"]).train.texts == first, "there is no dev.tsv"
    (tmp_path / "dev.tsv").write_text("Quality\t#1 String\t#2 String\n1\tanother\tone\n")
    assert open_corpus(str(tmp_path), CORPORA["mrpc"]).train.texts == ("another",)


@pytest.mark.parametrize("name", CORPORA)
def test_a_folder_without_a_corpus_names_the_files_that_it_must_have(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"not hold {CORPORA[name].name}: --dataset") as caught:
        open_corpus(str(tmp_path), CORPORA[name])
    for pair in CORPORA[name].files:
        assert all(file in str(caught.value) for file in pair)


def test_every_corpus_has_a_recipe_at_every_scale() -> None:
    for recipes in TEXT_RECIPES.values():
        assert recipes.keys() == CORPORA.keys()
        for track, recipe in recipes.items():
            assert recipe.texts is not None
            assert recipe.texts.corpus == track
            assert bool(recipe.texts.new_tokens) == (CORPORA[track].task == "generation")
    assert PRINTED.keys() == CORPORA.keys() - {"cola"}
