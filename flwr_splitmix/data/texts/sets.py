"""Text sets by name: made-up ones, a file of rows, a saved dataset, or one from the hub."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.data.errors import DataError, MissingColumnError, not_there
from flwr_splitmix.data.images.arrow_sets import load_hub, load_saved
from flwr_splitmix.data.images.sets import TEST_SPLITS
from flwr_splitmix.data.texts.files import Columns, read_columns
from flwr_splitmix.data.texts.generated import GENERATED, generated_sets
from flwr_splitmix.data.texts.rows import TextRows, TextSets, TextTask, check_task
from flwr_splitmix.seeding import derive_seed, frozen_generator

_HUB_NAME = re.compile(r"([\w-][\w.-]*/[\w.-]+)(?::([\w.-]+))?")
_HELD_OUT = 0.1
_ALLOWED = (
    f"allowed are {GENERATED!r}, a file that ends in .tsv, .csv or .jsonl (or that with .gz), a "
    "folder written by DatasetDict.save_to_disk, and a Hugging Face hub name with a '/' such as "
    "'openai/gsm8k:main'"
)


@dataclass(frozen=True)
class TextColumns:
    """Where a set's columns are: names, or numbers from 1 as in "4" for a file without names.

    Parameters
    ----------
    text, label
        Of sentences and their classes, for classification.
    question, answer
        Of prompts and their answers, for generation.
    group
        Of the natural partition; "": none.
    """

    text: str = "sentence"
    label: str = "label"
    question: str = "question"
    answer: str = "answer"
    group: str = ""

    def of(self, task: TextTask) -> list[str]:
        """Return the columns that a task reads: text, then label or answer, then the group."""
        pair = (self.text, self.label) if task == "classification" else (self.question, self.answer)
        return [*pair, *([self.group] if self.group else [])]


def load_text_sets(
    source: str,
    task: TextTask,
    *,
    columns: TextColumns | None = None,
    test: str = "",
    num_labels: int = 2,
    seed: int = 0,
) -> TextSets:
    """Load a training and a test set of texts; the same request is read only once per process.

    `source` is, decided in this order:

    1. "generated": made-up sentences or small sums, see `generated_sets`;
    2. a file that ends in .tsv, .csv or .jsonl, or that with .gz, see `read_columns`;
    3. a folder with a `DatasetDict` written by `save_to_disk`;
    4. a dataset on the Hugging Face hub, "owner/name" or "owner/name:subset".

    Parameters
    ----------
    source : str
        As above.
    task : "classification" or "generation"
        Sentences with classes, or prompts with answers.
    columns : TextColumns, optional
        Where they are.
    test : str
        Of a file: the file of the test rows, with the same columns; "" holds out a tenth of the
        rows, drawn under the seed. Of a dataset: the name of its test split; "" takes the first
        of test, validation, val and valid that there is.
    num_labels : int
        Number of classes. Labels that are whole numbers are 0..num_labels-1 and count for
        themselves; others are counted in sorted order.
    seed : int
        Of the rows that are held out, and of what is generated.

    Returns
    -------
    TextSets
        Shared by all callers in this process.

    Raises
    ------
    DataError
        If `source` is none of these, a column is missing, a text or an answer is empty, or a label
        is no class; the message names row and value.
    """
    check_task(task)
    if num_labels < 2 and task == "classification":
        raise DataError(f"num_labels is {num_labels}; at least 2 classes are needed")
    return _load(source, task, columns or TextColumns(), test, num_labels, seed)


@functools.lru_cache(maxsize=4)
def _load(
    source: str, task: TextTask, columns: TextColumns, test: str, num_labels: int, seed: int
) -> TextSets:
    if source == GENERATED:
        return generated_sets(task, seed=seed)
    names = columns.of(task)
    train, other = _read(source, names, test)
    values = _classes(train[names[1]], num_labels, source) if task == "classification" else {}
    classes = _named(values, num_labels)
    rows = _rows(train, names, values, repr(source), num_labels)
    if other is None:
        return _hold_out(rows, classes, source, seed)
    tested = _rows(other, names, values, f"the test part of {source!r}", num_labels)
    return TextSets(rows, tested, classes, source)


def _read(source: str, names: Sequence[str], test: str) -> tuple[Columns, Columns | None]:
    """Return the columns of training and test part; None: there is no test part of its own."""
    path = Path(source).expanduser()
    if source and os.path.exists(path):  # Path.exists would raise for a name that is too long
        if path.is_file():
            train = read_columns(path, names)
            return train, read_columns(_existing(test), names) if test else None
        return _arrow(load_saved(path, _splits(test)), names, source)
    if match := _HUB_NAME.fullmatch(source):
        name, subset = match.groups()
        splits = load_hub(name, _splits(test), subset=subset, kind="a text dataset")
        return _arrow(splits, names, source)
    raise DataError(f"there is no text dataset {source!r}{not_there(source)}: {_ALLOWED}")


def _existing(test: str) -> Path:
    path = Path(test).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {test!r} of test rows{not_there(test)}")
    return path


def _splits(test: str) -> Sequence[str]:
    return (test,) if test else TEST_SPLITS


def _arrow(splits: tuple[Any, Any], names: Sequence[str], source: str) -> tuple[Columns, Columns]:
    """Return the columns of both splits; labels that have names are their numbers."""
    for split in splits:
        missing = [name for name in names if name not in split.column_names]
        if missing:
            raise MissingColumnError(repr(source), missing[0], split.column_names)
    train, test = ({name: list(split[name]) for name in names} for split in splits)
    return train, test


def _classes(labels: Sequence[Any], num_labels: int, source: str) -> Mapping[str, int]:
    """Return each label's class: of whole numbers themselves, of others their sorted place."""
    distinct = {_label(label) for label in labels}
    if all(re.fullmatch(r"-?\d+", label) for label in distinct):
        return {str(label): label for label in range(num_labels)}
    if len(distinct) > num_labels:
        raise DataError(
            f"{source!r} has {len(distinct)} labels ({', '.join(map(repr, sorted(distinct)[:5]))}, "
            f"...), but the head has {num_labels} classes; num-labels says how many"
        )
    return {label: number for number, label in enumerate(sorted(distinct))}


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _named(values: Mapping[str, int], num_labels: int) -> tuple[str, ...]:
    if not values:
        return ()
    return (*values, *(f"class {i}" for i in range(len(values), num_labels)))


def _rows(
    columns: Columns, names: Sequence[str], classes: Mapping[str, int], source: str, num_labels: int
) -> TextRows:
    texts, others = columns[names[0]], columns[names[1]]
    checked = [names[0]] if classes else names[:2]
    for name in checked:
        for number, value in enumerate(columns[name], 1):
            if not isinstance(value, str) or not value.strip():
                raise DataError(
                    f"row {number} of {source} has in column {name!r} "
                    f"{'an empty text' if isinstance(value, str) else f'no text but {value!r}'}"
                )
    labels = []
    for number, value in enumerate(others, 1) if classes else ():
        if _label(value) not in classes:
            raise DataError(
                f"row {number} of {source} has the label {value!r}; the head has "
                f"{num_labels} classes: {', '.join(list(classes)[:10])}; num-labels says how many"
            )
        labels.append(classes[_label(value)])
    return TextRows(
        tuple(texts),
        np.array(labels, np.int64),
        () if classes else tuple(others),
        tuple(map(str, columns[names[2]])) if len(names) > 2 else (),
    )


def _hold_out(rows: TextRows, classes: tuple[str, ...], source: str, seed: int) -> TextSets:
    kept = round((1 - _HELD_OUT) * len(rows))
    if not 0 < kept < len(rows):
        raise DataError(
            f"{source!r} has {len(rows)} rows, too few to hold a tenth out for testing; name a "
            "file of test rows (test-dataset)"
        )
    order = frozen_generator(derive_seed(seed, "held out")).permutation(len(rows))
    train, test = (rows.subset(np.sort(part)) for part in (order[:kept], order[kept:]))
    return TextSets(train, test, classes, source)
