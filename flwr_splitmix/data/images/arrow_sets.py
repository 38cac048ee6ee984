"""Image sets of the `datasets` library, saved to disk or loaded from the hub by Flower Datasets."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.images.pictures import decode_pictures, pack_pictures
from flwr_splitmix.data.images.sets import TEST_SPLITS, RawSets, Split, no_test_split

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
_ROWS_AT_ONCE = 256


def load_saved(folder: Path, test_splits: Sequence[str] = TEST_SPLITS) -> tuple[Any, Any]:
    """Open the training and test split of a `DatasetDict` written by `save_to_disk`.

    Parameters
    ----------
    test_splits
        Possible names of the test split; the first that exists is used.

    Returns
    -------
    tuple of datasets.Dataset
        Training split, test split.

    Raises
    ------
    DataError
        If the folder cannot be opened, holds a single split, or has no training or test split.
    """
    datasets = import_extra("datasets", "reading a saved dataset")
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # Arrow and datasets may raise anything for a damaged folder
        raise DataError(
            f"{folder} cannot be read as a dataset saved by save_to_disk: {_first_line(error)}"
        ) from error
    if not isinstance(saved, datasets.DatasetDict):
        raise DataError(
            f"{folder} holds a single split; save a DatasetDict with the splits train and test"
        )
    if "train" not in saved:
        raise DataError(f"{folder} has the splits {', '.join(saved)}; one named train is needed")
    test = next((saved[name] for name in test_splits if name in saved), None)
    if test is None:
        raise no_test_split(folder, test_splits)
    return saved["train"], test


def load_hub(
    name: str,
    test_splits: Sequence[str] = TEST_SPLITS,
    *,
    subset: str | None = None,
    kind: str = "an image dataset",
) -> tuple[Any, Any]:
    """Load a data set from the Hugging Face hub, or from the local cache.

    Parameters
    ----------
    test_splits
        Possible names of the test split; the first that exists is used.
    subset
        Configuration of the data set; None: its only one.
    kind
        Kind of data set, for messages.

    Returns
    -------
    tuple of datasets.Dataset
        Training split, test split, in the hub's order.

    Raises
    ------
    DataError
        If it cannot be loaded, or has no training or test split.
    """
    flwr_datasets = import_extra("flwr_datasets", "loading a dataset from the hub")
    try:
        # Not shuffled here: the partition shuffles with its own seed.
        federated = flwr_datasets.FederatedDataset(
            dataset=name, subset=subset, partitioners={}, shuffle=False
        )
        train = federated.load_split("train")
    except Exception as error:  # from an unknown name to a missing network
        raise DataError(
            f"the dataset {name!r} could not be loaded from the Hugging Face hub "
            f"({_first_line(error)}); allowed is the name of {kind} there with the "
            "splits train and test, while the hub can be reached or the dataset is cached; a "
            "folder needs an absolute path, for an app does not run where you are"
        ) from error
    for split in test_splits:
        try:
            return train, federated.load_split(split)
        except ValueError:  # raised by FederatedDataset for a missing split
            continue
    raise no_test_split(name, test_splits)


def read_arrow_sets(
    train: Any,
    test: Any,
    name: str,
    *,
    image_size: int,
    channels: int | None,
    skip_corrupt: bool = False,
) -> RawSets:
    """Convert two splits with an image and a label column to packed arrays.

    The columns are found by feature type (Image, ClassLabel), else by name (`IMAGE_COLUMNS`,
    `LABEL_COLUMNS`). Labels that are not a ClassLabel are numbered by the sorted values of the
    training split.

    Parameters
    ----------
    train, test : datasets.Dataset
        Splits with the same columns.
    name : str
        Name of the data set, for messages.
    image_size, channels, skip_corrupt
        As for `load_images`.

    Raises
    ------
    DataError
        If a column is missing, a picture cannot be decoded, or a label is unknown.
    """
    datasets = import_extra("datasets", "reading a dataset's pictures")
    image_column = _find_column(train.features, datasets.Image, IMAGE_COLUMNS, "image", name)
    label_column = _find_column(train.features, datasets.ClassLabel, LABEL_COLUMNS, "label", name)
    for column in (image_column, label_column):
        if column not in test.features:
            raise DataError(f"the test split of {name!r} lacks the column {column!r} of training")
    labels, classes = _count_labels(train, test, label_column, name)
    decoded = []
    for number, split in enumerate((train, test)):
        readable, kept = decode_pictures(
            (
                (source, f"image {row} of {name!r}")
                for row, source in enumerate(_encoded(split, image_column))
            ),
            image_size=image_size,
            channels=channels,
            skip_corrupt=skip_corrupt,
        )
        decoded.append(readable)
        labels[number] = labels[number][kept]
    train_images, test_images = pack_pictures(decoded, image_size)
    return RawSets(Split(train_images, labels[0]), Split(test_images, labels[1]), classes)


def _count_labels(
    train: Any, test: Any, column: str, name: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the int64 labels of both splits, and the class names by label."""
    datasets = import_extra("datasets", "reading a dataset's labels")
    feature, test_feature = train.features[column], test.features[column]
    for kind in (feature, test_feature):
        if not isinstance(kind, datasets.ClassLabel | datasets.Value):
            raise DataError(f"the labels of {name!r} are {kind}; one value per image is needed")
    values = [split.select_columns(column)[:][column] for split in (train, test)]
    if isinstance(feature, datasets.ClassLabel):
        if getattr(test_feature, "names", None) != feature.names:
            raise DataError(
                f"the test labels of {name!r} are {test_feature} and the training labels "
                f"{feature}; both must name the same classes in the same order"
            )
        known: dict[Any, int] = {label: label for label in range(feature.num_classes)}
        classes = tuple(feature.names)
    else:
        distinct = sorted({value for value in values[0] if value is not None})
        known = {value: label for label, value in enumerate(distinct)}
        classes = tuple(map(str, distinct))
    for split_name, split_values in zip(("training", "test"), values, strict=True):
        unknown = [value for value in split_values if value not in known]
        if unknown:
            raise DataError(
                f"the {split_name} split of {name!r} has the label {unknown[0]!r}, "
                f"which is none of the training classes ({', '.join(classes[:10])})"
            )
    return [np.array([known[value] for value in each], np.int64) for each in values], classes


def _find_column(features: Any, kind: type, names: tuple[str, ...], what: str, source: str) -> str:
    typed: list[str] = [column for column, feature in features.items() if isinstance(feature, kind)]
    named = [column for column in names if column in features]
    # A known name decides between several columns of the right type (CIFAR-100's two labels).
    for column in [*(c for c in named if c in typed), *typed, *named]:
        return column
    raise DataError(
        f"{source!r} has no {what} column among {', '.join(features)}; "
        f"one of type {kind.__name__} or named {' or '.join(names)} is needed"
    )


def _encoded(split: Any, column: str) -> Iterator[Path | io.BytesIO | np.ndarray]:
    """Yield the images of a column one by one, as stored."""
    datasets = import_extra("datasets", "reading a dataset's pictures")
    split = split.select_columns(column)
    if isinstance(split.features[column], datasets.Image):
        split = split.cast_column(column, datasets.Image(decode=False))
    for batch in split.iter(batch_size=_ROWS_AT_ONCE):
        for value in batch[column]:
            if isinstance(value, dict):
                content = value.get("bytes")
                yield Path(str(value.get("path"))) if content is None else io.BytesIO(content)
            elif isinstance(value, bytes):
                yield io.BytesIO(value)
            else:
                yield _pixels(value)


def _pixels(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim not in (2, 3):
        raise DataError(
            f"an image is stored as {array.dtype} of shape {array.shape}; allowed are encoded "
            "pictures and integers in 0..255 of shape (H, W) or (H, W, 3)"
        )
    if array.size and (array.min() < 0 or array.max() > 255):
        raise DataError(f"a pixel is {array.max()} or {array.min()}; pixels must lie in 0..255")
    return array.astype(np.uint8)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
