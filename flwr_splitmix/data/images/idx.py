"""The idx format of MNIST and similar sets: big-endian header, then one unsigned byte per value."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.sets import RawSets, Split
from flwr_splitmix.files.reading import check_regular
from flwr_splitmix.words import counted

IMAGE_FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABEL_FILES = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CHUNK_BYTES = 1 << 20


def find_idx(folder: Path, name: str) -> Path | None:
    """Return `folder/name` or, if that is not a file, `folder/name.gz`; None if neither is.

    A pipe counts as a file here: `read_idx` says that it is none.
    """
    candidates = (folder / name, folder / f"{name}.gz")
    return next((p for p in candidates if p.exists() and not p.is_dir()), None)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read one idx file of unsigned bytes, compressed by gzip if its name ends in ".gz".

    Memory is allocated for the data read, not for the size in the header, which may be wrong.

    Returns
    -------
    np.ndarray
        uint8 with `dimensions` dimensions: (n,) for labels, (n, rows, columns) for images.

    Raises
    ------
    DataError
        If the file cannot be read, has another type, or is not as long as stated in its header.

    Source: LeCun, Cortes, Burges, "The MNIST database", section on file formats.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            unpacked = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            return _parse(unpacked, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read and may be damaged: {error}") from error


def _parse(file: io.BufferedIOBase, path: Path, dimensions: int) -> np.ndarray:
    magic = bytes((0, 0, 8, dimensions))
    header = file.read(4 + 4 * dimensions)
    if header[:4] != magic:
        raise DataError(
            f"{path} is not an idx file of unsigned bytes in {dimensions} dimensions: "
            f"it begins with 0x{header[:4].hex()}, not 0x{magic.hex()}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path} is truncated: it ends after {len(header)} bytes of its header")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    expected = math.prod(shape)
    chunks: list[bytes] = []
    missing = expected + 1  # one more, to detect a file that is too long
    while missing and (chunk := file.read(min(missing, _CHUNK_BYTES))):
        chunks.append(chunk)
        missing -= len(chunk)
    size = expected + 1 - missing
    if size != expected:
        raise DataError(
            f"{path} is {'truncated' if size < expected else 'too long'}: its header says "
            f"{' x '.join(map(str, shape))} = {expected} bytes, and it holds "
            f"{size if size < expected else 'more'}"
        )
    return np.frombuffer(b"".join(chunks), np.uint8).reshape(shape)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write a uint8 array as a gzipped idx file; equal arrays give equal bytes."""
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0))


def read_idx_split(folder: Path, split: str) -> Split:
    """Read the images and labels of one split, "train" or "test", from a folder of idx files.

    Returns
    -------
    Split
        uint8 images (n, 1, rows, columns) and int64 labels (n,).

    Raises
    ------
    DataError
        If a file is missing or rejected by `read_idx`, or the numbers of images and labels differ.
    """
    arrays = []
    for name, dimensions in ((IMAGE_FILES[split], 3), (LABEL_FILES[split], 1)):
        path = find_idx(folder, name)
        if path is None:
            raise DataError(f"{folder} has neither {name} nor {name}.gz, which the set needs")
        arrays.append(read_idx(path, dimensions))
    images, labels = arrays
    if len(images) != len(labels):
        raise DataError(
            f"{folder} has {counted(len(images), f'{split} image')} but "
            f"{counted(len(labels), f'{split} label')}; there must be one label for each image"
        )
    return Split(images[:, np.newaxis], labels.astype(np.int64))


def read_idx_sets(folder: Path) -> RawSets:
    """Read a folder of four idx files.

    Classes are named by their number, or as in Fashion-MNIST if there are ten and the folder's
    name contains "fashion".

    Raises
    ------
    DataError
        As for `read_idx_split`.
    """
    train, test = read_idx_split(folder, "train"), read_idx_split(folder, "test")
    count = 1 + max(
        (int(split.labels.max()) for split in (train, test) if len(split.labels)), default=0
    )
    fashion = "fashion" in folder.resolve().name.lower() and count == len(FASHION_CLASSES)
    return RawSets(train, test, FASHION_CLASSES if fashion else tuple(map(str, range(count))))
