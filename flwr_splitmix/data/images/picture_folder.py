"""A folder of picture files by split and class: `train/<class>/*.png`, `test/<class>/*.png`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.pictures import decode_picture, pack_pictures
from flwr_splitmix.data.images.sets import TEST_SPLITS, RawSets, Split, no_test_split

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def read_picture_folder(folder: Path, *, image_size: int, channels: int | None) -> RawSets:
    """Read `train/` and the first of `test/`, `validation/`, `val/`, `valid/` that exists.

    Labels count the folders of `train/` in alphabetical order. Hidden entries and files with other
    suffixes than those of pictures are passed over.

    Parameters
    ----------
    folder : Path
        The folder that holds the splits.
    image_size, channels
        As for `load_images`.

    Raises
    ------
    DataError
        If there is no test split, a split or class holds no picture, a test class is not a
        training class, or a picture cannot be decoded; the message names it.
    """
    test = next((folder / name for name in TEST_SPLITS if (folder / name).is_dir()), None)
    if test is None:
        raise no_test_split(folder)
    pictures = {split: _pictures_by_class(split) for split in (folder / "train", test)}
    classes = tuple(pictures[folder / "train"])
    unknown = [name for name in pictures[test] if name not in classes]
    if unknown:
        raise DataError(
            f"{test} has the class {', '.join(map(repr, unknown))}, which {folder / 'train'} "
            "does not have; the test classes must all occur in training"
        )
    decoded: list[list[np.ndarray]] = []
    labels: list[np.ndarray] = []
    for by_class in pictures.values():
        paths = [(path, name) for name, members in by_class.items() for path in members]
        decoded.append(
            [
                decode_picture(path, str(path), image_size=image_size, channels=channels)
                for path, _ in paths
            ]
        )
        labels.append(np.array([classes.index(name) for _, name in paths], np.int64))
    train_images, test_images = pack_pictures(decoded, image_size)
    return RawSets(Split(train_images, labels[0]), Split(test_images, labels[1]), classes)


def _pictures_by_class(split: Path) -> dict[str, list[Path]]:
    folders = sorted(
        entry for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not folders:
        raise DataError(f"{split} has no class folders; pictures belong in {split.name}/<class>/")
    pictures = {
        entry.name: sorted(
            path
            for path in entry.iterdir()
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        )
        for entry in folders
    }
    empty = [name for name, paths in pictures.items() if not paths]
    if empty:
        raise DataError(
            f"the class folder {split / empty[0]} holds no picture; "
            f"files that end in {', '.join(sorted(SUFFIXES))} are read"
        )
    return pictures
