"""Texts whose files have changed are read again."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.rows import TextSets
from flwr_splitmix.data.texts.sets import load_text_sets


def write(file: Path, word: str) -> str:
    rows = "".join(f"{word} number {i} .\t{i % 2}\n" for i in range(20))
    file.write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    return str(file)


def load(source: str, test: str = "") -> TextSets:
    return load_text_sets(source, "classification", test=test)


def test_rows_are_read_again_once_their_file_has_changed(tmp_path: Path) -> None:
    source = write(tmp_path / "a.tsv", "old")
    first = load(source)
    assert load(source) is first
    write(tmp_path / "a.tsv", "newer")
    assert load(source).train.texts[0].startswith("newer")


def test_rows_are_read_again_once_their_test_file_has_changed(tmp_path: Path) -> None:
    source, test = write(tmp_path / "a.tsv", "some"), write(tmp_path / "b.tsv", "old")
    assert load(source, test).test.texts[0].startswith("old")
    write(tmp_path / "b.tsv", "newer")
    assert load(source, test).test.texts[0].startswith("newer")


def test_a_saved_set_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    for word in ("old", "newer"):
        rows = {"sentence": [f"{word} {i}" for i in range(4)], "label": [0, 1, 0, 1]}
        split = datasets.Dataset.from_dict(rows)
        datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(folder))
        assert load(str(folder)).train.texts[0] == f"{word} 0"


def test_a_relative_name_is_of_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "d.tsv", place)
        (tmp_path / place / "d.txt").write_text(f"This is a sentence of {place}.")
        monkeypatch.chdir(tmp_path / place)
        assert load("d.tsv").train.texts[0].startswith(place)
        assert load_public_texts("d.txt") == (f"This is a sentence of {place}.",)


@pytest.mark.parametrize("source", ["a.txt", "."], ids=["file", "folder"])
def test_public_texts_are_read_again_once_their_file_has_changed(
    source: str, tmp_path: Path
) -> None:
    place, file = str(tmp_path / source), tmp_path / "a.txt"
    file.write_text("An old sentence of words.")
    first = load_public_texts(place)
    assert load_public_texts(place) is first
    file.write_text("A newer sentence of words.")
    assert load_public_texts(place) == ("A newer sentence of words.",)
