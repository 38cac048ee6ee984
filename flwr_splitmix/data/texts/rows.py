"""Rows of text before they are tokenised, and a training and a test set of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flwr_splitmix.data.errors import DataError

TextTask = Literal["classification", "generation"]
TASKS = ("classification", "generation")


@dataclass(frozen=True)
class TextRows:
    """Labelled sentences or pairs of them, or prompts with their answers.

    Parameters
    ----------
    texts : tuple of str
        Sentences, or prompts; n of them, none of them empty.
    labels : np.ndarray
        int64 (n,), the class of each sentence or pair; of shape (0,) for prompts.
    answers : tuple of str
        The answer to each prompt; () for sentences.
    groups : tuple of str
        What each row's natural partition is called; () if no column says it.
    seconds : tuple of str
        The second sentence of each pair, none of them empty; () where sentences are single.
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    answers: tuple[str, ...]
    groups: tuple[str, ...]
    seconds: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: np.ndarray) -> TextRows:
        """Return these rows, in this order; `indices` are integers of shape (m,)."""
        rows = [int(index) for index in indices]

        def chosen(column: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(column[row] for row in rows) if column else ()

        return TextRows(
            chosen(self.texts),
            self.labels[rows] if len(self.labels) else self.labels,
            chosen(self.answers),
            chosen(self.groups),
            chosen(self.seconds),
        )

    def first(self, number: int) -> TextRows:
        """Return the first `number` rows, or as many as there are; 0: all."""
        return self.subset(np.arange(len(self))[:number]) if number else self


@dataclass(frozen=True)
class TextSets:
    """A training and a test set of rows with the same classes.

    Parameters
    ----------
    train, test : TextRows
        Neither is empty.
    classes : tuple of str
        Class names, by label; () for prompts.
    name : str
        The source that the sets were loaded from.
    """

    train: TextRows
    test: TextRows
    classes: tuple[str, ...]
    name: str

    @property
    def task(self) -> TextTask:
        """What a model does with a row."""
        return "classification" if self.classes else "generation"


def check_task(task: str) -> None:
    """Raise DataError unless there is such a task."""
    if task not in TASKS:
        raise DataError(f"the task is {task!r}; allowed are {', '.join(TASKS)}")
