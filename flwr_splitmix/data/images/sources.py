"""Image sets by name: the shipped set, a local folder of one of three kinds, or a hub data set."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.data.arrow_sets import is_saved, load_hub, load_saved
from flwr_splitmix.data.errors import DataError, not_there
from flwr_splitmix.data.file_state import state_of
from flwr_splitmix.data.images.arrow_sets import read_arrow_sets
from flwr_splitmix.data.images.composed import compose_sets
from flwr_splitmix.data.images.idx import IMAGE_FILES, LABEL_FILES, find_idx, read_idx_sets
from flwr_splitmix.data.images.picture_folder import folders_of_pictures, read_picture_folder
from flwr_splitmix.data.images.sets import ImageSets, RawSets, assemble
from flwr_splitmix.values import check_kind
from flwr_splitmix.words import listed

__all__ = ["COMPOSED", "SHIPPED", "ImageSets", "check_there", "load_images"]

SHIPPED = "fashion-mnist-small"
COMPOSED = "fashion-mnist-multi"
_SHIPPED_FOLDER = Path(__file__).with_name("fashion_mnist_small")
_FASHION_MEAN, _FASHION_STD = 0.2860, 0.3530
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_ALLOWED = (
    f"use {SHIPPED!r}, {COMPOSED!r}, a folder of idx files "
    "(train-images-idx3-ubyte[.gz], ...), a folder of pictures (train/<class>/, test/<class>/), "
    "a folder written by DatasetDict.save_to_disk, or a Hugging Face hub name with a '/' such as "
    "'zalando-datasets/fashion_mnist'"
)


def load_images(
    source: str | os.PathLike[str],
    *,
    image_size: int = 32,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    skip_corrupt: bool = False,
) -> ImageSets:
    """Load a training and a test set of images.

    The latest results are kept in the process; a folder is read again if a file in it has changed.

    `source` is the first of these that applies:

    1. "fashion-mnist-small": 6,000 training and 2,000 test images, shipped with this package; or
       "fashion-mnist-multi": as many, each composed of four of these and with their labels;
    2. an existing local folder with (a) idx files `train-images-idx3-ubyte`,
       `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`, each plain
       or with ".gz"; (b) a `DatasetDict` written by `save_to_disk`; (c) pictures in
       `train/<class>/` and `test/<class>/` (or `validation`, `val`, `valid`);
    3. the name of a dataset on the Hugging Face hub, "owner/name", loaded through Flower Datasets.

    A saved data set, or one from the hub, may be multi-label: its labels are then a list of
    ClassLabel, or several columns of truth values and no other label. The splits keep the order of
    the source. The shipped set and idx files are normalised with the mean and standard deviation of
    Fashion-MNIST (0.2860, 0.3530), all others with 0.5 and 0.5, unless `mean` and `std` are given.
    Only image files, saved data sets and the hub need the extra `vision`.

    Parameters
    ----------
    source
        As above; a folder may also be a `pathlib.Path`.
    image_size
        S. If all images have the same size of at most S x S, they are padded with black; otherwise
        each is resized (bilinear) to S x S.
    channels
        1 or 3. None: 1 if all images are grey (modes "L" and "1"), else 3. Grey images are
        repeated for 3 channels.
    mean, std
        Values for normalisation, one per channel, averaged for grey images; both or neither.
    skip_corrupt
        Leave out images that cannot be read, with a warning.

    Returns
    -------
    ImageSets
        Shared by all callers in this process; its arrays are read-only.

    Raises
    ------
    DataError
        If `source` is none of these, a file is damaged, a split is missing or empty, the test
        split has a class that the training split lacks, or an argument is out of range.
    TypeError
        If `source` is neither text nor a path.
    """
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    check_kind("source", source, str, "the name of a data set, or a folder")
    if image_size < 1:
        raise DataError(f"image_size is {image_size}; it must be 1 or more")
    if channels not in (None, 1, 3):
        raise DataError(f"channels is {channels}; it must be 1, 3 or None (as the images are)")
    if (mean is None) != (std is None):
        raise DataError("only one of mean and std is given; give both or neither")
    statistics = None if mean is None or std is None else (tuple(mean), tuple(std))
    return _load(source, image_size, channels, statistics, skip_corrupt, _state_of(source))


def check_there(source: str) -> None:
    """Check that there is a data set of this name, without reading its images.

    One of the hub is downloaded, if it is not in the cache.

    Parameters
    ----------
    source
        As for `load_images`.

    Raises
    ------
    DataError
        As `load_images` would raise it first, if there is none.
    """
    if source in (SHIPPED, COMPOSED):
        return
    folder = Path(source).expanduser()
    if source and os.path.exists(folder):
        _kind_of(folder)
    elif _HUB_NAME.fullmatch(source):
        load_hub(source)
    else:
        raise _nowhere(source)


@functools.lru_cache(maxsize=4)
def _load(
    source: str,
    image_size: int,
    channels: int | None,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None,
    skip_corrupt: bool,
    state: str,  # part of the cache's key only
) -> ImageSets:
    shipped = source in (SHIPPED, COMPOSED)
    folder = _SHIPPED_FOLDER if shipped else Path(source).expanduser()
    if source and os.path.exists(folder):  # Path.exists raises for names that are too long
        raw = _read_folder(folder, image_size, channels, skip_corrupt)
    elif _HUB_NAME.fullmatch(source):
        train, test = load_hub(source)
        raw = read_arrow_sets(
            train, test, source, image_size=image_size, channels=channels, skip_corrupt=skip_corrupt
        )
    else:
        raise _nowhere(source)
    if source == COMPOSED:
        raw = compose_sets(raw)
    fashion = shipped or _has_idx(folder)
    usual = (_FASHION_MEAN, _FASHION_STD) if fashion else (0.5, 0.5)
    mean, std = statistics or usual
    return assemble(
        raw,
        source,
        image_size=image_size,
        channels=channels,
        mean=mean,
        std=std,
    )


def _state_of(source: str) -> str:
    """Return the state of a folder's files; "" for no folder."""
    folder = Path(source).expanduser()
    if source in (SHIPPED, COMPOSED) or not source or not os.path.exists(folder):
        return ""
    _kind_of(folder)  # raises an error before a walk through a folder of anything else
    return state_of(folder)


def _has_idx(folder: Path) -> bool:
    names = (*IMAGE_FILES.values(), *LABEL_FILES.values())
    return any(find_idx(folder, name) is not None for name in names)


def _read_folder(
    folder: Path, image_size: int, channels: int | None, skip_corrupt: bool
) -> RawSets:
    options: dict[str, Any] = {
        "image_size": image_size, "channels": channels, "skip_corrupt": skip_corrupt,
    }  # fmt: skip
    kind = _kind_of(folder)
    if kind == "idx":
        return read_idx_sets(folder)
    if kind == "saved":
        train, test = load_saved(folder)
        return read_arrow_sets(train, test, str(folder), folder=folder, **options)
    return read_picture_folder(folder, **options)


def _kind_of(folder: Path) -> Literal["idx", "saved", "pictures"]:
    """Return what a folder holds; raise DataError if it is unknown or cannot be looked into."""
    if not folder.is_dir():
        kind = "a file" if folder.is_file() else "a pipe or a device"
        raise DataError(f"{folder} is {kind}, not a folder: {_ALLOWED}")
    try:
        next(folder.iterdir(), None)
        (folder / "train").exists()
    except OSError as error:
        raise DataError(
            f"the folder {folder} cannot be read ({error.strerror}): the user of the app's "
            "processes needs the right to"
        ) from error
    if _has_idx(folder):
        return "idx"
    # Checked before image folders, as a saved data set also has a folder `train`.
    if is_saved(folder):
        return "saved"
    if (folder / "train").is_dir():
        return "pictures"
    if classes := folders_of_pictures(folder):
        raise DataError(
            f"the folder {folder} has pictures in {listed([f'{name}/' for name in classes])}, but "
            "no split: put these into train/, and folders of the same names with other pictures "
            "into test/"
        )
    raise DataError(f"the folder {folder} holds no image dataset: {_ALLOWED}")


def _nowhere(source: str) -> DataError:
    return DataError(f"there is no image dataset {source!r}{not_there(source)}: {_ALLOWED}")
