"""Images and labels of a data set of the `datasets` library, saved to disk or from the hub."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.images.arrow_labels import find_column, read_labels
from flwr_splitmix.data.images.pictures import decode_pictures, pack_pictures
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.words import one_line

IMAGE_COLUMNS = ("image", "img", "picture")
_ROWS_AT_ONCE = 256


def read_arrow_sets(
    train: Any,
    test: Any,
    name: str,
    *,
    image_size: int,
    channels: int | None,
    skip_corrupt: bool = False,
    folder: Path | None = None,
) -> RawSets:
    """Convert two splits with an image column and labels to packed arrays.

    The image column is found by its feature type, Image, else by its name (`IMAGE_COLUMNS`), which
    also decides between several; the labels as by `read_labels`.

    Parameters
    ----------
    train, test
        Splits with the same columns.
    name
        Name of the data set, for messages.
    image_size, channels, skip_corrupt
        As for `load_images`.
    folder
        Where the splits were saved. A row that names a file, instead of holding a picture, may name
        one within; else it would choose among the reader's own. None: on the hub, whose rows may
        name what `datasets` has downloaded.

    Raises
    ------
    DataError
        If a row names any other file, a column is missing or nothing decides between
        several, a picture cannot be decoded, or a label is unknown.
    """
    datasets = import_extra("datasets", "reading a dataset's pictures")
    image_column = find_column(train.features, datasets.Image, IMAGE_COLUMNS, "image", name)
    if image_column not in test.features:
        raise DataError(f"the test split of {name!r} lacks the column {image_column!r} of training")
    labels, classes = read_labels(train, test, name)
    decoded = []
    for number, split in enumerate((train, test)):
        readable, kept_rows = decode_pictures(
            (
                (source, f"image {row} of {name!r}")
                for row, source in enumerate(_encoded(split, image_column, name, folder))
            ),
            image_size=image_size,
            channels=channels,
            skip_corrupt=skip_corrupt,
        )
        decoded.append(readable)
        labels[number] = labels[number][kept_rows]
    train_images, test_images = pack_pictures(decoded, image_size)
    return RawSets(Split(train_images, labels[0]), Split(test_images, labels[1]), classes)


def _encoded(
    split: Any, column: str, name: str, folder: Path | None
) -> Iterator[Path | io.BytesIO | np.ndarray | None]:
    """Yield the images of a column one by one, as stored; None where there is none."""
    datasets = import_extra("datasets", "reading a dataset's pictures")
    split = split.select_columns(column)
    if isinstance(split.features[column], datasets.Image):
        split = split.cast_column(column, datasets.Image(decode=False))
    row = -1
    for batch in split.iter(batch_size=_ROWS_AT_ONCE):
        for value in batch[column]:
            row += 1
            if value is None:
                yield None
            elif isinstance(value, dict):
                content, path = value.get("bytes"), value.get("path")
                if isinstance(content, bytes):
                    yield io.BytesIO(content)
                elif isinstance(path, str):
                    yield _within(folder, path, f"image {row} of {name!r}")
                else:
                    yield None
            elif isinstance(value, bytes):
                yield io.BytesIO(value)
            else:
                yield _pixels(value, _dtype_of(split.features[column]))


def _within(folder: Path | None, path: str, name: str) -> Path:
    """Return the file that a row names: in the folder of its data set, or in a cache of the hub."""
    places = _hub_caches() if folder is None else (folder,)
    named, leads = places[0] / path, ""
    try:
        file = named.resolve()
        if any(file.is_relative_to(place.resolve()) for place in places):
            return file
        if any(_plain(named).is_relative_to(_plain(place)) for place in places):
            leads = f", which leads to {one_line(str(file))[:200]!r}"
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a null character
        pass
    if folder is None:
        outside = "the caches of datasets"
        remedy = "take a data set that holds its pictures, or download it anew if the caches moved"
    elif leads:
        outside, remedy = "that folder", "put the pictures themselves into the folder"
    else:
        outside = "that folder"
        remedy = (
            "save the data set anew where its pictures are; save_to_disk then stores the pictures "
            "themselves"
        )
    raise DataError(
        f"{name} is not a picture, but the name of a file outside {outside}, "
        f"{one_line(path)[:200]!r}{leads}: {remedy}"
    )


def _hub_caches() -> tuple[Path, ...]:
    """Return the folders that `datasets` downloads to."""
    config = import_extra("datasets", "reading a dataset's pictures").config
    hub = import_extra("huggingface_hub.constants", "reading a dataset's pictures")
    caches = (
        config.HF_DATASETS_CACHE,
        config.DOWNLOADED_DATASETS_PATH,
        config.EXTRACTED_DATASETS_PATH,
        hub.HF_HUB_CACHE,  # single pictures of a repository stay here
    )
    return tuple(Path(cache) for cache in caches)


def _plain(path: Path) -> Path:
    """Return a path without `..`, with its links."""
    return Path(os.path.normpath(path))


def _dtype_of(feature: Any) -> str:
    """Return the type of the numbers that a column holds, such as "uint8"; "" if it tells none."""
    while True:
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None:
            return str(getattr(feature, "dtype", ""))
        feature = inner


def _pixels(value: Any, stored: str) -> np.ndarray:
    """Return an image stored as numbers of a type, uint8 (H, W) or (H, W, C)."""
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype.kind not in "iu" or array.ndim not in (2, 3) or not 1 <= channels <= 4:
        first, last = (array.shape[0], array.shape[-1]) if array.ndim == 3 else (0, 0)
        in_front = first in (1, 3, 4) and last not in (1, 3, 4)
        raise DataError(
            f"an image is stored as {stored or array.dtype} of shape {array.shape}; expected "
            "encoded pictures or integers in 0..255 of shape (H, W) or (H, W, C), where C is 1 "
            "(grey), 2 (with alpha), 3 (RGB) or 4 (with alpha)"
            + ("; move the channels to the end (transpose)" if in_front else "")
        )
    if array.size and (array.min() < 0 or array.max() > 255):
        raise DataError(f"a pixel is {array.max()} or {array.min()}; pixels must lie in 0..255")
    return array.astype(np.uint8)
