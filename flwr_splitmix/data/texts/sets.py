"""Text sets by name: generated texts, a file of rows, a saved data set, or one from the hub."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.data.arrow_sets import is_saved, load_hub, load_saved
from flwr_splitmix.data.errors import DataError, MissingColumnError, TestRowsError, not_there
from flwr_splitmix.data.file_state import state_of
from flwr_splitmix.data.split_names import TEST_SPLITS
from flwr_splitmix.data.texts.columns import EmptyTexts, TextColumns, rows_of
from flwr_splitmix.data.texts.files import Columns, may_be_names, read_columns
from flwr_splitmix.data.texts.generated import GENERATED, generated_sets
from flwr_splitmix.data.texts.labels import classes_of, names_of
from flwr_splitmix.data.texts.rows import TextRows, TextSets, TextTask, check_task
from flwr_splitmix.seeding import derive_seed, frozen_generator
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

_HUB_NAME = re.compile(r"([\w-][\w.-]*/[\w.-]+)(?::([\w.-]+))?")
_HELD_OUT = 0.1
_ALLOWED = (
    f"use {GENERATED!r}, a file that ends in .tsv, .txt, .csv, .json or .jsonl (or that "
    "with .gz), a folder written by DatasetDict.save_to_disk, or a Hugging Face hub name with a "
    "'/' such as 'openai/gsm8k:main'"
)


def load_text_sets(
    source: str,
    task: TextTask,
    *,
    columns: TextColumns | None = None,
    test: str = "",
    num_labels: int = 2,
    seed: int = 0,
    empty_texts: EmptyTexts = "refuse",
    own: bool = False,
) -> TextSets:
    """Load a training and a test set of texts.

    The latest results are kept in the process; files are read again if one of them has changed.

    `source` is the first of these that applies:

    1. "generated": generated sentences or small sums, see `generated_sets`;
    2. a file that ends in .tsv, .txt, .csv, .json or .jsonl, optionally followed by .gz, see
       `read_columns`;
    3. a folder with a `DatasetDict` written by `save_to_disk`;
    4. a data set on the Hugging Face hub, "owner/name" or "owner/name:subset".

    A text, question or answer that is a list of strings, such as WebNLG's triples, becomes one
    line per string.

    Parameters
    ----------
    source
        As above.
    task
        Sentences with classes, or prompts with answers.
    columns
        Columns of the source.
    test
        For a file: the file of the test rows, with the same columns; "" holds out a random tenth
        of the rows. For a data set: the name of its test split; "" takes the first of test,
        validation, val and valid that exists.
    num_labels
        Number of classes. Labels that are whole numbers are the classes 0..num_labels-1, with the
        names of a ClassLabel; words are numbered in sorted order.
    seed
        Seed of the held-out rows and of generated texts.
    empty_texts
        Treatment of rows with an empty or null text or answer: raise, or leave them out and log
        their number.
    own
        Whether `source` is one node's own, while other nodes have theirs. Then its labels must be
        whole numbers, as each node would number words by itself; and the same rows are held out
        whatever the seed, the columns and the rows left out, as otherwise test rows of enough
        runs were all rows. The first line of a file that other columns would take for names is
        not held out.

    Returns
    -------
    TextSets
        Shared by all callers in this process.

    Raises
    ------
    DataError
        If `source` is none of these, a column is missing, a text or an answer is empty (unless
        such rows are dropped) or not a text, or a label is not a class; the message names row and
        value. It is a `TestRowsError` if `test` names what is wrong.
    """
    check_task(task)
    if num_labels < 2 and task == "classification":
        raise DataError(f"num_labels is {num_labels}; at least 2 classes are needed")
    chosen = columns or TextColumns()
    return _load(
        source,
        task,
        columns=chosen,
        test=test,
        num_labels=num_labels,
        seed=seed,
        empty_texts=empty_texts,
        own=own,
        state=_state_of(source, test),
    )


def classes_of_texts(
    source: str, *, columns: TextColumns | None = None, test: str = "", num_labels: int = 2
) -> tuple[str, ...]:
    """Return the names of the classes of `load_text_sets`; only the column of labels is kept.

    Raises
    ------
    DataError
        As there, of labels.
    """
    label = (columns or TextColumns()).label
    of_file = Path(source).expanduser().is_file()
    train, _, label_names = _read(source, [label], "" if of_file else test, label)
    return names_of(classes_of(train[label], num_labels, source), num_labels, label_names)


@functools.lru_cache(maxsize=4)
def _load(
    source: str,
    task: TextTask,
    *,
    columns: TextColumns,
    test: str,
    num_labels: int,
    seed: int,
    empty_texts: EmptyTexts,
    own: bool,
    state: str,  # part of the cache's key only
) -> TextSets:
    if source == GENERATED:
        return generated_sets(task, seed=seed)
    roles = columns.roles(task)
    train, other, label_names = _read(source, list(roles.values()), test, roles.get("label", ""))
    labels = train[columns.label] if "label" in roles else []
    classes = classes_of(labels, num_labels, source, own=own) if "label" in roles else {}
    named = names_of(classes, num_labels, label_names)
    rows, places = rows_of(train, roles, classes, repr(source), num_labels, empty_texts)
    if other is None:
        if own:
            number = len(next(iter(train.values())))
            first = int(may_be_names(Path(source), list(roles.values())))
            held_out = _held_out(number, source, 0, first=first)[places]
        else:
            held_out = _held_out(len(rows), source, seed)
        return _divided(rows, held_out, named, source)
    in_file = Path(source).expanduser().is_file()
    where = f"the test file {test!r}" if in_file else f"the test part of {source!r}"
    if other == train:
        log.warning(
            "%s has the same rows as the training part, so accuracy will be measured on what was "
            "learned; name other rows (test-dataset)",
            where,
        )
    with _named_by(test):
        tested, _ = rows_of(other, roles, classes, where, num_labels, empty_texts)
    return TextSets(rows, tested, named, source)


def _state_of(source: str, test: str) -> str:
    """Return the state of the files that are read; "" for texts that are in no file here."""
    path = Path(source).expanduser()
    if source in ("", GENERATED) or not os.path.exists(path):
        return ""
    if path.is_file():
        other = Path(test).expanduser()
        return state_of(path, other) if test and os.path.isfile(other) else state_of(path)
    return state_of(path) if is_saved(path) else ""  # no walk through a folder of anything else


def _read(
    source: str, names: Sequence[str], test: str, label: str
) -> tuple[Columns, Columns | None, tuple[str, ...]]:
    """Return the columns of the training and the test part, and the classes' names by label.

    There may be no test part (None), and no names (()).
    """
    path = Path(source).expanduser()
    if source and os.path.exists(path):  # Path.exists raises for names that are too long
        if path.is_file():
            train = read_columns(path, names)
            with _named_by(test):
                return train, read_columns(_existing(test), names) if test else None, ()
        if not path.is_dir():
            raise DataError(f"{path} cannot be read: it is not a regular file")
        return _arrow(load_saved(path, _splits(test)), names, source, label)
    if match := _HUB_NAME.fullmatch(source):
        name, subset = match.groups()
        splits = load_hub(name, _splits(test), subset=subset, kind="a text dataset")
        return _arrow(splits, names, source, label)
    raise DataError(f"there is no text dataset {source!r}{not_there(source)}: {_ALLOWED}")


@contextlib.contextmanager
def _named_by(test: str) -> Iterator[None]:
    """Turn errors into `TestRowsError` if the test rows have a name."""
    try:
        yield
    except MissingColumnError:
        raise
    except DataError as error:
        if not test:
            raise
        raise TestRowsError(str(error)) from error


def _existing(test: str) -> Path:
    path = Path(test).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {test!r} of test rows{not_there(test)}")
    return path


def _splits(test: str) -> Sequence[str]:
    return (test,) if test else TEST_SPLITS


def _arrow(
    splits: tuple[Any, Any], names: Sequence[str], source: str, label: str
) -> tuple[Columns, Columns, tuple[str, ...]]:
    """Return the columns of both splits, and the names of labels that are given by number."""
    for split in splits:
        missing = [name for name in names if name not in split.column_names]
        if missing:
            raise MissingColumnError(repr(source), missing[0], split.column_names)
    first, second = (
        tuple(getattr(split.features[label], "names", ())) if label else () for split in splits
    )
    if second and first != second:
        raise DataError(
            f"the training labels of {source!r} are {', '.join(first) or 'numbers'} and the test "
            f"labels {', '.join(second)}; both must name the same classes in the same order"
        )
    train, test = ({name: list(split[name]) for name in names} for split in splits)
    return train, test, first


def _held_out(number: int, source: str, seed: int, *, first: int = 0) -> np.ndarray:
    """Return which rows are held out, bool (number,): a tenth of those from row `first` on.

    Raises
    ------
    DataError
        If a tenth of them is less than half a row.
    """
    drawn_from = number - first
    num_train = round((1 - _HELD_OUT) * drawn_from)
    if not 0 < num_train < drawn_from:
        raise DataError(
            f"{source!r} has {counted(number, 'row')}, too few to hold a tenth out for testing; "
            "name a file of test rows (test-dataset)"
        )
    order = frozen_generator(derive_seed(seed, "held out")).permutation(drawn_from)
    held_out = np.zeros(number, dtype=bool)
    held_out[first + order[num_train:]] = True
    return held_out


def _divided(
    rows: TextRows, held_out: np.ndarray, classes: tuple[str, ...], source: str
) -> TextSets:
    """Return rows as two sets.

    Parameters
    ----------
    held_out
        bool (n,): which rows are test rows.

    Raises
    ------
    DataError
        If one of the sets has no row, as others were left out.
    """
    train, test = (rows.subset(np.flatnonzero(part)) for part in (~held_out, held_out))
    if not (len(train) and len(test)):
        other = "all but " if len(test) else ""
        raise DataError(
            f"{other}the tenth of its rows that is held out for testing, the same in every run, "
            "has an empty text in each row, and such rows are left out (empty-texts='drop'); name "
            "a file of test rows (test-dataset), or fill in the texts"
        )
    return TextSets(train, test, classes, source)
