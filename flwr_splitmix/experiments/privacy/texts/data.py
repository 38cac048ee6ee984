"""Tokenised texts of a victim and of the attacker, for a cell of the matrix of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from flwr_splitmix.attacks.texts.releasing import draw_victims, fill_step
from flwr_splitmix.clients import TextSet
from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.generated import GENERATED
from flwr_splitmix.data.texts.rows import TextRows, TextSets, TextTask
from flwr_splitmix.data.texts.sets import load_text_sets
from flwr_splitmix.data.texts.tokens import plain_tokens
from flwr_splitmix.experiments.cells import ExperimentError, dataset_name
from flwr_splitmix.experiments.privacy.texts.sizes import SUMS, TextSize
from flwr_splitmix.experiments.texts.corpora import CORPORA, open_corpus
from flwr_splitmix.experiments.texts.data import open_public
from flwr_splitmix.experiments.texts.models import open_model_tokenizer

PUBLIC_WORDS = 40

MADE_UP = (100, 300)
"""Maximum numbers of made-up public texts: the client's, and the attacker's."""


@dataclass(frozen=True)
class MatrixTexts:
    """All texts of a row's run, disjoint.

    Parameters
    ----------
    task
        "classification", or "generation", which learns every word of a text.
    train, test
        Texts of the client, and texts on which utility is measured.
    trained, held_out
        Victims, as indices into `train` and into `test`.
    supports, public
        Public texts of the client and of the attacker, int64 (t,) each.
    """

    task: TextTask
    classes: int
    tokenizer: Any
    train: TextSet
    test: TextSet
    trained: list[int]
    held_out: list[int]
    supports: list[Tensor]
    public: list[Tensor]

    @property
    def victims(self) -> tuple[list[Tensor], list[Any]]:
        """Texts of all victims, trained ones first, and their labels."""
        return self.steps(1)

    def steps(self, batch: int) -> tuple[list[Tensor], list[Any]]:
        """Return the victims' texts and labels, with others of the client in their last step."""
        rows = [(self.train, i) for i in self.trained] + [(self.test, i) for i in self.held_out]
        rows = fill_step(rows, self.train, batch)
        labels = [
            data.labels[i] if self.task == "generation" else int(data.labels[i]) for data, i in rows
        ]
        return [data.texts[i] for data, i in rows], labels


def task_of(source: str) -> TextTask:
    """Return the task of a data set.

    Raises
    ------
    ExperimentError
        If the matrix of texts cannot read it.
    """
    name = dataset_name(source)
    if name == SUMS:
        return "generation"
    if name not in CORPORA:
        raise ExperimentError(
            f"the matrix of texts cannot read {source!r}; --dataset is {SUMS!r}, or a folder named "
            f"{' or '.join(CORPORA)}"
        )
    return CORPORA[name].task


def open_sets(source: str) -> TextSets:
    """Read the data set of a matrix of texts.

    Raises
    ------
    DataError, ExperimentError
        If the corpus cannot be read.
    """
    task, name = task_of(source), dataset_name(source)
    return load_text_sets(GENERATED, task) if name == SUMS else open_corpus(source, CORPORA[name])


def load_matrix_texts(source: str, size: TextSize, seed: int) -> MatrixTexts:
    """Read the texts that a size needs, and divide them.

    Raises
    ------
    DataError, ExperimentError
        If the texts cannot be read, or are too few.
    """
    task, sets = task_of(source), open_sets(source)
    made_up = GENERATED if dataset_name(source) == SUMS else source
    tokenizer = open_model_tokenizer(size.model)

    def tokens(rows: TextRows) -> TextSet:
        texts = (
            [f"{text} {answer}" for text, answer in zip(rows.texts, rows.answers, strict=True)]
            if task == "generation"
            else list(rows.texts)
        )
        ids, kept_rows = plain_tokens(
            texts,
            tokenizer,
            max_length=size.max_length,
            seconds=rows.seconds,
            long_texts="cut",
        )
        # In generation every word is a label, so gradients can reveal the most here.
        labels: Any = ids if task == "generation" else [int(rows.labels[row]) for row in kept_rows]
        return TextSet(ids, labels)

    rng = np.random.default_rng(seed)
    train = tokens(_draw_rows(sets.train, size.fitting_of(task).samples, rng, source))
    test = tokens(_draw_rows(sets.test, min(size.test, len(sets.test)), rng, source))
    supports, needed = size.supports, size.supports + size.public
    if made_up == GENERATED:
        supports = min(supports, MADE_UP[0])
        needed = supports + min(size.public, MADE_UP[1])
    sentences = open_public(made_up, task, limit=needed, max_words=PUBLIC_WORDS, seed=seed)
    if len(sentences) < needed:
        raise DataError(
            f"got {len(sentences)} public texts beside {source!r}; expected at least {needed}"
        )
    public, _ = plain_tokens(sentences, tokenizer, max_length=size.max_length, long_texts="cut")
    return MatrixTexts(
        task,
        len(sets.classes),
        tokenizer,
        train,
        test,
        draw_victims(train, size.trained, rng),
        draw_victims(test, size.held_out, rng),
        public[:supports],
        public[supports:],
    )


def _draw_rows(rows: TextRows, number: int, rng: np.random.Generator, source: str) -> TextRows:
    if number > len(rows):
        raise DataError(f"{source!r} has {len(rows)} texts; expected at least {number}")
    order = rng.permutation(len(rows))
    return rows.subset(order[:number] if number else order)
