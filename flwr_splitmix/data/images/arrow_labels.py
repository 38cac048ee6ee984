"""Labels of a saved data set or one from the hub: a class for each image, or several labels."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.words import listed

log = logging.getLogger("flwr.splitmix")

LABEL_COLUMNS = ("label", "labels", "fine_label")


def read_labels(train: Any, test: Any, name: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the labels of both splits, and the names of classes or labels.

    The column is found by its feature type, ClassLabel or a list of ClassLabel, else by its name
    (`LABEL_COLUMNS`), which also decides between several. Labels that are not ClassLabel are
    numbered by the sorted values of the training split. A list names the labels that an image has.
    Without such a column, two or more columns of truth values are labels of their own, as in
    CelebA.

    Parameters
    ----------
    train, test
        Splits with the same columns.
    name
        Name of the data set, for messages.

    Returns
    -------
    tuple of list of np.ndarray and tuple of str
        int64 (n,) of each split; or multi-label (n, L), 1 for each label that an image has.

    Raises
    ------
    DataError
        If a column is missing or of another kind, there are several of unknown names, or a label is
        unknown.
    """
    columns = _columns(train, name)
    for column in columns:
        if column not in test.features:
            raise DataError(f"the test split of {name!r} lacks the column {column!r} of training")
    if len(columns) > 1:
        return [_truth_values(split, columns, name) for split in (train, test)], tuple(columns)
    if _listed(train.features[columns[0]]) is not None:
        return _lists(train, test, columns[0], name)
    return _classes(train, test, columns[0], name)


def _columns(train: Any, name: str) -> list[str]:
    """Return the column of labels, or all columns of truth values."""
    datasets = import_extra("datasets", "reading a dataset's labels")
    features = train.features
    typed = [c for c, f in features.items() if isinstance(f, datasets.ClassLabel)]
    if not typed and not any(column in features for column in LABEL_COLUMNS):
        lists = [column for column, feature in features.items() if _listed(feature) is not None]
        if lists:
            return [_choose(lists, LABEL_COLUMNS, "label", name)]
        truths = [c for c, f in features.items() if getattr(f, "dtype", None) == "bool"]
        if len(truths) > 1:
            return truths
    return [find_column(features, datasets.ClassLabel, LABEL_COLUMNS, "label", name)]


def _listed(feature: Any) -> Any:
    """Return the ClassLabel of a feature that is a list of them, else None."""
    datasets = import_extra("datasets", "reading a dataset's labels")
    inner = getattr(feature, "feature", None)
    if isinstance(feature, list) and len(feature) == 1:
        inner = feature[0]
    return inner if isinstance(inner, datasets.ClassLabel) else None


def _truth_values(split: Any, columns: list[str], name: str) -> np.ndarray:
    table = split.select_columns(columns)[:]
    for column in columns:
        if any(value is None for value in table[column]):
            raise DataError(f"the label {column!r} of {name!r} is missing for an image")
    return np.array([table[column] for column in columns], np.int64).T.copy()


def _lists(
    train: Any, test: Any, column: str, name: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    kind = _listed(train.features[column])
    if getattr(_listed(test.features[column]), "names", None) != kind.names:
        raise DataError(
            f"the test labels of {name!r} are {test.features[column]} and the training labels "
            f"{train.features[column]}; both must name the same labels in the same order"
        )
    several = []
    for split in (train, test):
        rows = np.zeros((len(split), kind.num_classes), np.int64)
        for row, values in enumerate(split.select_columns(column)[:][column]):
            if values is None or any(not 0 <= value < kind.num_classes for value in values):
                raise DataError(
                    f"the labels of an image of {name!r} are {values}; expected a list of "
                    f"numbers in 0..{kind.num_classes - 1}"
                )
            rows[row, values] = 1
        several.append(rows)
    return several, tuple(kind.names)


def _classes(
    train: Any, test: Any, column: str, name: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    datasets = import_extra("datasets", "reading a dataset's labels")
    feature, test_feature = train.features[column], test.features[column]
    for kind in (feature, test_feature):
        if not isinstance(kind, datasets.ClassLabel | datasets.Value):
            raise DataError(
                f"the labels of {name!r} are {kind!s:.200}; expected one value for each image, "
                "or, for several labels, a list of ClassLabel"
            )
    values = [split.select_columns(column)[:][column] for split in (train, test)]
    if isinstance(feature, datasets.ClassLabel):
        if getattr(test_feature, "names", None) != feature.names:
            raise DataError(
                f"the test labels of {name!r} are {test_feature} and the training labels "
                f"{feature}; both must name the same classes in the same order"
            )
        label_of: dict[Any, int] = {label: label for label in range(feature.num_classes)}
        classes = tuple(feature.names)
    else:
        numbers = [v for v in values[0] if isinstance(v, float) and math.isfinite(v)]
        broken = next((v for v in numbers if not v.is_integer()), None)
        if broken is not None:
            raise DataError(
                f"the labels of {name!r} are numbers such as {broken:g}, not classes; needed "
                "are a ClassLabel, texts or whole numbers (regression is not offered)"
            )
        distinct = sorted({v for v in values[0] if v is not None and v == v})  # NaN is not a label
        label_of = {value: label for label, value in enumerate(distinct)}
        classes = tuple(map(str, distinct))
    for split_name, split_values in zip(("training", "test"), values, strict=True):
        unknown = [value for value in split_values if value not in label_of]
        if unknown:
            raise DataError(
                f"the {split_name} split of {name!r} has the label {unknown[0]!r}, "
                f"which is none of the training classes ({listed(classes)})"
            )
    return [np.array([label_of[value] for value in each], np.int64) for each in values], classes


def find_column(features: Any, kind: type, names: tuple[str, ...], role: str, source: str) -> str:
    """Return the column of a feature type, else of a name.

    Of several of the type a known name decides, and the others are named in the log.

    Raises
    ------
    DataError
        If there is none, or nothing decides between several.
    """
    typed: list[str] = [column for column, feature in features.items() if isinstance(feature, kind)]
    named = [column for column in names if column in features]
    if not typed and not named:
        raise DataError(
            f"{source!r} has no {role} column among {', '.join(features)}; "
            f"one of type {kind.__name__} or named {' or '.join(names)} is needed"
        )
    chosen = _choose(typed or named, names, role, source)
    if others := [column for column in dict.fromkeys([*typed, *named]) if column != chosen]:
        log.warning(
            "%r has several %s columns: %r is used, and not %s",
            source, role, chosen, ", ".join(map(repr, others)),
        )  # fmt: skip
    return chosen


def _choose(columns: list[str], names: tuple[str, ...], role: str, source: str) -> str:
    """Return the only one of columns, or the one of a known name."""
    named = [column for column in names if column in columns]
    if len(columns) > 1 and not named:
        raise DataError(
            f"{source!r} has several {role} columns: {', '.join(columns)}; rename the one to use "
            f"to {names[0]!r} (rename_column), and save the set with save_to_disk"
        )
    return (named or columns)[0]
