"""The columns of a text set by their content, and the rows made from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.files import Columns
from flwr_splitmix.data.texts.labels import class_of
from flwr_splitmix.data.texts.rows import TextRows, TextTask
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

Role = Literal["text", "second", "label", "question", "answer", "group"]
"""Content of a column."""

EmptyTexts = Literal["refuse", "drop"]
"""Treatment of a row with an empty text."""


@dataclass(frozen=True)
class TextColumns:
    """Columns of a set, by name, or by number from 1, such as "4", for a file without names.

    Parameters
    ----------
    text, label
        Sentences and their classes, for classification.
    question, answer
        Prompts and their answers, for generation.
    group
        Groups of the natural partition; "": none.
    second
        For classification, the second sentences of pairs; "": single sentences. For generation,
        text that follows the question on its own line unless it is empty, such as an
        instruction's input; "": none.
    """

    text: str = "sentence"
    label: str = "label"
    question: str = "question"
    answer: str = "answer"
    group: str = ""
    second: str = ""

    def roles(self, task: TextTask) -> dict[Role, str]:
        """Return the columns that a task reads, by content."""
        columns: dict[Role, str] = (
            {"text": self.text, "second": self.second, "label": self.label}
            if task == "classification"
            else {"question": self.question, "second": self.second, "answer": self.answer}
        )
        columns["group"] = self.group
        return {role: column for role, column in columns.items() if column}


def rows_of(
    columns: Columns,
    roles: Mapping[Role, str],
    classes: Mapping[str, int],
    source: str,
    num_labels: int,
    empty_texts: EmptyTexts = "refuse",
) -> tuple[TextRows, list[int]]:
    """Make rows from the values of columns.

    Parameters
    ----------
    columns, roles
        The values of each column, and the columns by content.
    classes
        The class of each label, by the label as text; empty for prompts.
    source
        The source, for messages.
    num_labels
        Number of classes, for messages.
    empty_texts
        As for `load_text_sets`.

    Returns
    -------
    tuple of TextRows and list of int
        The rows that are kept, and the place of each in the columns.

    Raises
    ------
    DataError
        If a text is empty and `empty_texts` is "refuse", a text has half a character, no row is
        left, or a label is missing or unknown.
    """
    of = {
        role: columns[name] if role == "label" else [_as_text(value) for value in columns[name]]
        for role, name in roles.items()
    }
    pairs = "label" in roles
    needed: list[Role] = ["text", "second"] if pairs else ["question", "answer"]
    needed = [role for role in needed if role in roles]
    kept_rows = _kept_rows(of, roles, needed, source, empty_texts)

    def column(role: Role) -> list[Any]:
        return [of[role][row] for row in kept_rows] if role in of else []

    labels = [
        class_of(
            value,
            classes,
            where=f"row {row + 1} of {source}",
            column=roles["label"],
            num_labels=num_labels,
        )
        for row, value in zip(kept_rows, column("label"), strict=False)
    ]
    first, second = column(needed[0]), column("second")
    if second and not pairs:
        first = [
            text if _is_empty(more) else f"{text}\n{more}"
            for text, more in zip(first, second, strict=True)
        ]
    rows = TextRows(
        tuple(first),
        np.array(labels, np.int64),
        tuple(column("answer")),
        tuple(map(str, column("group"))),
        tuple(second) if pairs else (),
    )
    return rows, kept_rows


def _kept_rows(
    of: Mapping[Role, Sequence[Any]],
    roles: Mapping[Role, str],
    needed: Sequence[Role],
    source: str,
    empty_texts: EmptyTexts,
) -> list[int]:
    """Return which rows have all needed texts, after a check of each; see `rows_of`."""
    size = len(of[needed[0]])
    kept_rows = []
    for row in range(size):
        empty = any(_is_empty(of[role][row]) for role in needed)
        if empty_texts == "drop" and empty:
            continue
        where = f"row {row + 1} of {source}"
        for role in needed:
            _check_text(of[role][row], where, roles[role])
        for role, values in of.items():
            if isinstance(values[row], str):
                check_characters(values[row], f"{where} has in column {roles[role]!r}")
        kept_rows.append(row)
    if len(kept_rows) < size:
        log.warning(
            "left out for their empty text: %d of %s of %s",
            size - len(kept_rows),
            counted(size, "row"),
            source,
        )
    if not kept_rows:
        columns_read = " and ".join(repr(roles[role]) for role in needed)
        raise DataError(f"no row of {source} has a text in {columns_read}")
    return kept_rows


def _as_text(value: Any) -> Any:
    """Return a list of strings joined as lines, and other values unchanged."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def check_characters(text: str, has: str) -> None:
    """Refuse a text with half of a surrogate pair, which JSON can write and no tokenizer reads.

    Parameters
    ----------
    has
        Begin of the message: the owner of the text, with the verb.

    Raises
    ------
    DataError
        If there is such a half.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise DataError(
            f"{has} half a character, {half!r}, at place {error.start + 1}; write the whole "
            "character, or remove it"
        ) from None


def _check_text(value: Any, where: str, column: str) -> None:
    if isinstance(value, str) and value.strip():
        return
    content, remedy = f"no text but {value!r}", ""
    if _is_empty(value):
        content = "an empty text" if isinstance(value, str) else "no text"
        remedy = "; such rows can be left out (empty-texts='drop')"
    elif isinstance(value, (int, float)):
        remedy = f'; a text has quotes around it: "{json.dumps(value)}"'
    raise DataError(f"{where} has in column {column!r} {content}{remedy}")
