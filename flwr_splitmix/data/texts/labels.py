"""Labels of a text set as classes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.words import listed

_WHOLE = re.compile(r"([+-]?\d{1,18})(\.0*)?")
_FRACTION = re.compile(r"[+-]?(\d*\.\d+([eE][+-]?\d+)?|\d+[eE]-\d+)")


def label_of(value: Any) -> str | None:
    """Return a label as text without blanks at its ends; None for a value that is not a label.

    Whole numbers have one form: 1, "1", "+1", "01", 1.0 and True are the same label.
    """
    if not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    text = str(int(value) if isinstance(value, bool) else value).strip()
    whole = _WHOLE.fullmatch(text)
    return str(int(whole[1])) if whole else text or None


def classes_of(
    labels: Iterable[Any], num_labels: int, source: str, *, own: bool = False
) -> Mapping[str, int]:
    """Return the class of each label, by the label as text.

    Whole numbers are their own classes, 0 to `num_labels` - 1; words are numbered in sorted order.
    Values that are not a label, which `rows_of` refuses, do not count.

    Parameters
    ----------
    own
        As for `load_text_sets`.

    Raises
    ------
    DataError
        If there are more words than classes, or words beside whole numbers, or words in a node's
        own data, or fractions instead of words.
    """
    distinct = {label for label in map(label_of, labels) if label is not None}
    words = sorted(label for label in distinct if not _WHOLE.fullmatch(label))
    if not words:
        return {str(label): label for label in range(num_labels)}
    if all(map(_FRACTION.fullmatch, words)):
        raise DataError(
            f"{source!r} has as labels numbers such as {words[0]}; expected words or whole "
            f"numbers (regression is not offered; if they name classes, write v{words[0]}, say)"
        )
    if own:
        raise DataError(
            f"{source!r} has the label {words[0]!r}; labels of a node's own dataset must be whole "
            f"numbers, 0 to {num_labels - 1}, since each node would number words by itself"
        )
    if len(words) < len(distinct):
        raise DataError(
            f"{source!r} has whole numbers as labels, and beside them "
            f"{listed(map(repr, words), most=5)}; either all must be whole numbers, from 0, or none"
        )
    if len(words) > num_labels:
        raise DataError(
            f"{source!r} has {len(words)} labels ({listed(map(repr, words), most=5)}), but the "
            f"head has {num_labels} classes; num-labels says how many"
        )
    return {label: number for number, label in enumerate(words)}


def names_of(
    classes: Mapping[str, int], num_labels: int, label_names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the names of all classes, by label; () if there are none.

    Parameters
    ----------
    label_names
        Names by label, if the data set has them beside its whole numbers.
    """
    if not classes:
        return ()
    names = label_names[:num_labels] or tuple(classes)
    return (*names, *(f"class {i}" for i in range(len(names), num_labels)))


def class_of(
    value: Any, classes: Mapping[str, int], *, where: str, column: str, num_labels: int
) -> int:
    """Return the class of one row's label.

    Parameters
    ----------
    where, column, num_labels
        The row, the column of labels and the number of classes, for messages.

    Raises
    ------
    DataError
        If `value` is not a label, or is none of `classes`.
    """
    label = label_of(value)
    if label is None:
        raise DataError(
            f"{where} has in column {column!r} no label but {value!r}; each row must have one"
        )
    if label not in classes:
        raise DataError(
            f"{where} has the label {value!r}; the head has {num_labels} classes: "
            f"{listed(classes)}; {_remedy(label, classes)}"
        )
    return classes[label]


def _remedy(label: str, classes: Mapping[str, int]) -> str:
    if "0" not in classes:
        return "no row of the training part has that one"
    counted = "whole numbers as labels begin with 0, and num-labels says how many there are"
    if label != "-1":
        return counted
    return (
        f"{counted}; -1 stands in GLUE's test splits where labels are secret, for which "
        "test-dataset may name another split or file"
    )
