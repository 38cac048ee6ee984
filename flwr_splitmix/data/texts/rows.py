"""Rows of text before tokenisation, and a training and a test set of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flwr_splitmix.data.errors import DataError

TextTask = Literal["classification", "generation"]
TASKS = ("classification", "generation")


@dataclass(frozen=True)
class TextRows:
    """Labelled sentences or pairs of sentences, or prompts with their answers.

    Parameters
    ----------
    texts
        Sentences or prompts; n of them, none empty.
    labels
        int64 (n,), the class of each sentence or pair; of shape (0,) for prompts.
    answers
        The answer to each prompt; () for sentences.
    groups
        The group of each row for the natural partition; () if there is no such column.
    seconds
        The second sentence of each pair, none empty; () for single sentences.
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    answers: tuple[str, ...]
    groups: tuple[str, ...]
    seconds: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: np.ndarray) -> TextRows:
        """Return the rows at `indices`, integers of shape (m,), in this order."""
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
        """Return the first `number` rows, or all if there are fewer; 0: all."""
        return self.subset(np.arange(len(self))[:number]) if number else self


@dataclass(frozen=True)
class TextSets:
    """A training and a test set of rows with the same classes.

    Parameters
    ----------
    train, test
        Neither is empty.
    classes
        Class names, by label; () for prompts.
    name
        Source of the sets.
    """

    train: TextRows
    test: TextRows
    classes: tuple[str, ...]
    name: str

    @property
    def task(self) -> TextTask:
        """Task of a model on these rows."""
        return "classification" if self.classes else "generation"


def check_task(task: str) -> None:
    """Raise DataError unless `task` is one of `TASKS`."""
    if task not in TASKS:
        raise DataError(f"the task is {task!r}; it must be one of {', '.join(TASKS)}")
