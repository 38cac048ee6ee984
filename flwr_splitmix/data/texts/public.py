"""Plain public text: files divided into sentences or paragraphs of bounded length."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal

from flwr_splitmix.data.errors import DataError, not_there
from flwr_splitmix.data.file_state import state_of
from flwr_splitmix.data.texts.files import kind_of, read_text
from flwr_splitmix.seeding import derive_seed, frozen_generator

Unit = Literal["sentence", "paragraph"]
UNITS = ("sentence", "paragraph")

_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")
# After a mark that ends a sentence and before a capital letter; "Mr. Darcy" is split, too.
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])[\"\u201d'\u2019)]*\s+(?=[\"\u201c'\u2018(]*[A-Z])")
_HEADING = re.compile(r"(= )+.*( =)+")


def load_public_texts(
    source: str,
    *,
    unit: Unit = "sentence",
    min_words: int = 4,
    max_words: int = 40,
    limit: int = 0,
    seed: int = 0,
) -> tuple[str, ...]:
    """Read plain text and divide it into pieces.

    The latest results are kept in the process; files are read again if one of them has changed.

    Paragraphs are separated by blank lines; in a file without any, each line is one. Headings of
    the form " = Title = " (WikiText) are left out, and line breaks become spaces. Words are
    separated by blanks, and sentences end before a capital letter from A to Z. Units of more than
    `max_words` are split after every `max_words` words.

    Parameters
    ----------
    source
        A file that ends in .txt or .txt.gz, or a folder of such files (without subfolders).
    unit
        Unit of division.
    min_words, max_words
        Limits of a piece; shorter pieces are left out; 1 <= min_words <= max_words.
    limit
        Maximum number of pieces, drawn at random and kept in their order; 0: all.
    seed
        Seed of the draw.

    Returns
    -------
    tuple of str
        At least one piece, without duplicates.

    Raises
    ------
    DataError
        If an argument is out of range, the source cannot be read, or no piece is left.
    """
    if unit not in UNITS:
        raise DataError(f"the unit is {unit!r}; it must be one of {', '.join(UNITS)}")
    if not 1 <= min_words <= max_words:
        raise DataError(
            f"min_words is {min_words} and max_words {max_words}; expected "
            "1 <= min_words <= max_words"
        )
    if limit < 0:
        raise DataError(f"limit is {limit}; it must be 0 (all) or more")
    files = tuple(_files(Path(source).expanduser()))
    pieces = _read(source, files, unit, min_words, max_words, state_of(*files))
    if not 0 < limit < len(pieces):
        return pieces
    rng = frozen_generator(derive_seed(seed, "public texts"))
    return tuple(pieces[i] for i in sorted(rng.permutation(len(pieces))[:limit]))


@functools.lru_cache(maxsize=4)
def _read(
    source: str,
    files: tuple[Path, ...],
    unit: Unit,
    min_words: int,
    max_words: int,
    state: str,  # part of the cache's key only
) -> tuple[str, ...]:
    pieces: dict[str, None] = {}
    for path in files:
        for paragraph in _paragraphs(read_text(path)):
            for part in _SENTENCE_ENDS.split(paragraph) if unit == "sentence" else [paragraph]:
                words = part.split()
                for start in range(0, len(words), max_words):
                    piece = words[start : start + max_words]
                    if len(piece) >= min_words:
                        pieces[" ".join(piece)] = None
    if not pieces:
        raise DataError(
            f"{source!r} holds no {unit} of at least {min_words} words, separated by blanks"
        )
    return tuple(pieces)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if kind_of(f) == ".txt" and f.is_file())
        if not files:
            raise DataError(f"the folder {path} holds no file that ends in .txt or .txt.gz")
        return files
    if not path.is_file():
        raise DataError(
            f"there is no public text {str(path)!r}{not_there(str(path))}; use a file that "
            "ends in .txt or .txt.gz, or a folder of such"
        )
    if kind_of(path) != ".txt":
        raise DataError(f"{path} is not a file that ends in .txt or .txt.gz, as public text must")
    return [path]


def _paragraphs(text: str) -> list[str]:
    text = text.replace("\r\n", "\n").strip()
    blocks = _BLANK_LINES.split(text)
    if len(blocks) == 1:
        blocks = text.split("\n")
    joined = (" ".join(block.split()) for block in blocks)
    return [block for block in joined if block and not _HEADING.fullmatch(block)]
