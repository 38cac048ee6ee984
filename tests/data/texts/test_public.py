"""Plain text becomes sentences or paragraphs of bounded length."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.public import load_public_texts

SHARED = Path(__file__).parents[4] / "shared" / "data" / "public_text"

BOOK = """It was a dark night,
and the wind blew. “Who is there?” said the man
at the door.

Nobody answered him at all!
"""


def write(path: Path, text: str) -> str:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_wrapped_lines_are_joined_and_cut_at_sentences(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, BOOK)
    assert load_public_texts(path, min_words=3) == (
        "It was a dark night, and the wind blew.",
        "“Who is there?” said the man at the door.",
        "Nobody answered him at all!",
    )
    assert len(load_public_texts(path, unit="paragraph")) == 2


def test_headings_short_pieces_and_repetitions_are_left_out(tmp_path: Path) -> None:
    text = (
        " \n = A Title of Words = \n \n one two three four \n \n = = Part = = \n \n one two \n \n"
    )
    path = write(tmp_path / "a.txt", text + " one two three four \n")
    assert load_public_texts(path, unit="paragraph") == ("one two three four",)


def test_no_piece_is_longer_than_asked_and_no_word_is_lost(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(23)]
    path = write(tmp_path / "a.txt", " ".join(words))
    pieces = load_public_texts(path, min_words=1, max_words=10)
    assert [len(piece.split()) for piece in pieces] == [10, 10, 3]
    assert " ".join(pieces).split() == words


def test_a_limit_draws_under_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\n".join(f"text number {i} here" for i in range(50)))
    some = load_public_texts(path, limit=10, seed=1)
    assert len(set(some)) == 10
    assert load_public_texts(path, limit=10, seed=1) == some
    assert load_public_texts(path, limit=10, seed=2) != some
    assert len(load_public_texts(path, limit=99)) == 50


def test_a_folder_is_all_its_text_files(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "the second file is here")
    write(tmp_path / "a.txt.gz", "the first file is here")
    write(tmp_path / "readme.md", "this is not text of it")
    assert load_public_texts(str(tmp_path)) == ("the first file is here", "the second file is here")


def test_the_real_files_are_read() -> None:
    if not SHARED.is_dir():
        pytest.skip("there are no public texts at ../shared/data/public_text")
    pieces = load_public_texts(str(SHARED / "wikitext2_valid.txt.gz"), unit="paragraph")
    assert len(pieces) > 2000
    assert not any(piece.startswith("= ") for piece in pieces)
    assert max(len(piece.split()) for piece in pieces) == 40


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.txt", "one two", {}, "holds no sentence of at least 4 words, separated by blanks"),
        ("a.md", BOOK, {}, "is not a file that ends in .txt or .txt.gz"),
        ("", "", {}, "holds no file that ends in .txt or .txt.gz"),
        ("a.txt", BOOK, {"unit": "word"}, "the unit is 'word'; it must be one of sentence, p"),
        ("a.txt", BOOK, {"max_words": 3}, "min_words is 4 and max_words 3"),
        ("a.txt", BOOK, {"limit": -1}, "limit is -1; it must be 0"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / name, text) if name else str(tmp_path)
    with pytest.raises(DataError, match=message):
        load_public_texts(path, **options)


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress(BOOK.encode())
    path.write_bytes(whole[:12] + b"\xff" * 8 + whole[20:])
    with pytest.raises(DataError, match=r"a\.txt\.gz cannot be read"):
        load_public_texts(str(path))


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="there is no public text '/nowhere'"):
        load_public_texts("/nowhere")
