"""Writer of the shipped subset: `python -m flwr_splitmix.data.images.make_small SOURCE TARGET`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.idx import IMAGE_FILES, LABEL_FILES, read_idx_split, write_idx
from flwr_splitmix.words import are, counted

PER_CLASS = {"train": 600, "test": 200}


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the first `count` samples of each class, in the order of the file.

    Returns
    -------
    np.ndarray
        int64 of shape (classes * count,), increasing.

    Raises
    ------
    DataError
        If a class has fewer than `count` samples.
    """
    chosen = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        if len(positions) < count:
            raise DataError(
                f"class {label} has {counted(len(positions), 'sample')}; {count} {are(count)} "
                "needed"
            )
        chosen.append(positions[:count])
    return np.sort(np.concatenate(chosen))


def make_small(source: Path, target: Path) -> None:
    """Write 600 training and 200 test images per class of `source` to four idx files in `target`.

    The decoded content depends only on the source; the compressed bytes may differ between
    versions of zlib.

    Raises
    ------
    DataError
        If `source` is not a folder of idx files with as many images in each class.
    """
    target.mkdir(parents=True, exist_ok=True)
    for split, count in PER_CLASS.items():
        images, labels = read_idx_split(source, split)
        chosen = first_of_each_class(labels, count)
        write_idx(target / f"{IMAGE_FILES[split]}.gz", images[chosen, 0])
        write_idx(target / f"{LABEL_FILES[split]}.gz", labels[chosen].astype(np.uint8))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; `arguments` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m flwr_splitmix.data.images.make_small")
    parser.add_argument("source", type=Path, help="folder with the four files of Fashion-MNIST")
    parser.add_argument("target", type=Path, help="folder to write the four smaller files to")
    options = parser.parse_args(arguments)
    try:
        make_small(options.source, options.target)
    except DataError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
