"""A cell's texts as tokens: each client's part, the common test set, the public sentences."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flwr_splitmix.clients import TextSet
from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.generated import GENERATED, generated_public
from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.rows import TextRows, TextTask
from flwr_splitmix.data.texts.token_sets import public_token_set, token_set
from flwr_splitmix.data.texts.tokens import LongTexts, LongTextsCount
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.scored_rows import rows_to_test
from flwr_splitmix.experiments.texts.corpora import CORPORA, open_corpus
from flwr_splitmix.experiments.texts.public_corpora import open_public_pair
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

PUBLIC_FOLDER = "public_text"
"""Name of the folder of public texts, beside the data set's folder."""

_MIN_WORDS = 4


class CellTexts(NamedTuple):
    """Data of a cell of texts for training and evaluation.

    `classes` is the number of labels; 0 for generation. The first `supports` of the public texts
    are only supports, the others only for calibration; 0: all serve for both.
    """

    clients: list[TextSet]
    pooled: TextSet
    test: TextSet
    public: TextSet
    classes: int
    task: TextTask
    supports: int = 0


def load_cell_texts(cell: Cell, source: str, tokenizer: Any) -> CellTexts:
    """Read the corpus and the public texts, and divide the training texts among the clients.

    Long texts are truncated, except test prompts with answers, which are left out.

    Parameters
    ----------
    source
        The corpus's folder, beside a folder "public_text" with the public texts; or "generated".
    tokenizer
        The model's tokenizer.

    Raises
    ------
    DataError
        If a file is missing or cannot be read, or there are too few texts for the cell.
    """
    recipe = cell.recipe
    assert recipe.texts is not None
    sets = open_corpus(source, CORPORA[recipe.texts.corpus])
    length = recipe.texts.max_length

    def tokenised(rows: TextRows, long_texts: LongTexts = "cut") -> TextSet:
        return token_set(
            rows,
            tokenizer,
            sets.task,
            max_length=length,
            long_texts=long_texts,
            on_long=_tell_dropped,
        )

    order = np.random.default_rng(cell.seed).permutation(len(sets.train))
    each = recipe.samples or len(order) // cell.clients
    if each * cell.clients > len(order):
        raise DataError(
            f"the {counted(len(order), 'training text')} of {source!r} {are(len(order))} too few "
            f"for {counted(cell.clients, 'client')} with {each} each"
        )
    parts = [order[start : start + each] for start in range(0, each * cell.clients, each)]
    public, supports = _public(cell, source, sets.task)
    return CellTexts(
        [tokenised(sets.train.subset(part)) for part in parts],
        tokenised(sets.train.subset(np.concatenate(parts))),
        # A generated answer is scored against the complete right one.
        tokenised(_test_rows(sets.test, recipe.test_images), "cut" if sets.classes else "drop"),
        public_token_set(public, tokenizer, max_length=length),
        len(sets.classes),
        sets.task,
        supports,
    )


def check_texts(cell: Cell, source: str) -> None:
    """Check that a cell's corpus can be read, and that there are public texts beside it.

    Parameters
    ----------
    source
        As for `load_cell_texts`.

    Raises
    ------
    DataError
        If a file is missing or cannot be read.
    """
    assert cell.recipe.texts is not None
    task = open_corpus(source, CORPORA[cell.recipe.texts.corpus]).task
    if source != GENERATED and not Path(_public_folder(source)).is_dir():
        _public(cell, source, task)  # raises with what is missing


def open_public(
    source: str, task: TextTask, *, limit: int, max_words: int, seed: int
) -> Sequence[str]:
    """Read sentences from the folder of public texts beside a corpus's, or generate them.

    Raises
    ------
    DataError
        If there is no such folder, or it has no text.
    """
    if source == GENERATED:
        return generated_public(task)[:limit]
    return load_public_texts(
        _public_folder(source),
        min_words=_MIN_WORDS,
        max_words=max_words,
        limit=limit,
        seed=seed,
    )


def _public(cell: Cell, source: str, task: TextTask) -> tuple[Sequence[str], int]:
    """Return a cell's public texts, and the number of the first that are only supports."""
    assert cell.recipe.texts is not None
    limit, most = cell.recipe.texts.public_texts, cell.recipe.texts.public_words
    pair = cell.recipe.public_corpora
    if pair is None:
        return open_public(source, task, limit=limit, max_words=most, seed=cell.seed), 0
    calibration, supports = open_public_pair(
        source if source == GENERATED else _public_folder(source),
        task,
        pair,
        limit=limit,
        min_words=_MIN_WORDS,
        max_words=most,
        seed=cell.seed,
    )
    return [*supports, *calibration], len(supports)


def _public_folder(source: str) -> str:
    return str(Path(source).expanduser().resolve().parent / PUBLIC_FOLDER)


def _tell_dropped(count: LongTextsCount) -> None:
    if count.dropped:
        log.warning("left out as too long: %d of %s", count.dropped, counted(count.texts, "text"))


def _test_rows(test: TextRows, texts: int) -> TextRows:
    chosen = rows_to_test(len(test), texts)
    return test if chosen is None else test.subset(chosen)
