"""A folder of image files by split and class: `train/<class>/*.png`, `test/<class>/*.png`."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.pictures import decode_pictures, pack_pictures
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.data.split_names import TEST_SPLITS, no_test_split

log = logging.getLogger("flwr.splitmix")

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def read_picture_folder(
    folder: Path, *, image_size: int, channels: int | None, skip_corrupt: bool = False
) -> RawSets:
    """Read `train/` and the first of `test/`, `validation/`, `val/`, `valid/` that exists.

    Labels number the folders of `train/` in alphabetical order. Hidden entries are ignored, and
    those of a class without one of `SUFFIXES` left out with a warning that counts them.

    Parameters
    ----------
    folder
        Folder of the splits.
    image_size, channels, skip_corrupt
        As for `load_images`.

    Raises
    ------
    DataError
        If there is no test split, a split or class contains no image, a test class is not a
        training class, or an image cannot be decoded; the message names it.
    """
    test = next((folder / name for name in TEST_SPLITS if (folder / name).is_dir()), None)
    if test is None:
        raise no_test_split(folder)
    pictures = {split: _pictures_by_class(split) for split in (folder / "train", test)}
    classes = tuple(pictures[folder / "train"])
    unknown = [name for name in pictures[test] if name not in pictures[folder / "train"]]
    if unknown:
        raise DataError(
            f"{test} has the class {', '.join(map(repr, unknown))}, which {folder / 'train'} "
            "does not have; the test classes must all occur in training"
        )
    label_of = {name: label for label, name in enumerate(classes)}
    decoded: list[list[np.ndarray]] = []
    labels: list[np.ndarray] = []
    for split, by_class in pictures.items():
        paths = [(path, name) for name, members in by_class.items() for path in members]
        readable, kept_places = decode_pictures(
            ((path, str(path)) for path, _ in paths),
            image_size=image_size,
            channels=channels,
            skip_corrupt=skip_corrupt,
        )
        if not readable:
            raise DataError(f"no picture of {split} can be read; at least one is needed")
        decoded.append(readable)
        labels.append(np.array([label_of[paths[place][1]] for place in kept_places], np.int64))
    train_images, test_images = pack_pictures(decoded, image_size)
    return RawSets(Split(train_images, labels[0]), Split(test_images, labels[1]), classes)


def folders_of_pictures(folder: Path) -> list[str]:
    """Return the names of a folder's own folders that hold pictures, but for those of a split."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in ("train", *TEST_SPLITS)
        and entry.is_dir()
        and os.access(entry, os.R_OK | os.X_OK)
        and any(path.suffix.lower() in SUFFIXES for path in entry.iterdir())
    )


def _pictures_by_class(split: Path) -> dict[str, list[Path]]:
    folders = sorted(
        entry for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not folders:
        raise DataError(f"{split} has no class folders; pictures belong in {split.name}/<class>/")
    pictures: dict[str, list[Path]] = {}
    others: Counter[str] = Counter()
    for folder in folders:
        shown = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        pictures[folder.name] = [path for path in shown if path.suffix.lower() in SUFFIXES]
        others.update(_kind(path) for path in shown if path.suffix.lower() not in SUFFIXES)
    if others:
        log.warning(
            "left out of the class folders in %s: %s; files that end in %s are read",
            split, ", ".join(f"{kind} ({number})" for kind, number in others.most_common(10)),
            ", ".join(sorted(SUFFIXES)),
        )  # fmt: skip
    empty = [name for name, paths in pictures.items() if not paths]
    if empty:
        raise DataError(
            f"the class folder {split / empty[0]} holds no picture: put pictures there, or remove "
            f"it; files that end in {', '.join(sorted(SUFFIXES))} are read"
        )
    return pictures


def _kind(path: Path) -> str:
    return "folders" if path.is_dir() else path.suffix.lower() or "without a suffix"
