"""idx files: what is written is read back, and damage is named."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_splitmix.data import DataError
from flwr_splitmix.data.images.idx import find_idx, read_idx, read_idx_sets, write_idx


@given(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)),
    st.sampled_from(["x", "x.gz"]),
)
def test_reading_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, name: str
) -> None:
    path = tmp_path_factory.mktemp("idx") / name
    write_idx(path, array)
    if path.suffix != ".gz":
        path.write_bytes(gzip.decompress(path.read_bytes()))
    read = read_idx(path, array.ndim)
    assert read.shape == array.shape
    assert np.array_equal(read, array)


def test_the_same_array_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_idx(tmp_path / name, np.arange(200, dtype=np.uint8))
    content = (tmp_path / "a").read_bytes()
    assert content == (tmp_path / "b").read_bytes()
    assert content[4:8] == bytes(4)  # the time in the gzip header


def header(*shape: int) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file of unsigned bytes in 3 dimensions: it begins with 0x,"),
        (b"\x89PNG and so on", "it begins with 0x89504e47, not 0x00000803"),
        (header(5)[:4] + bytes(50), "it begins with 0x00000801"),
        (header(1, 2, 2)[:9], "is truncated: it ends after 9 bytes of its header"),
        (header(2, 2, 2) + bytes(7), "is truncated: its header says 2 x 2 x 2 = 8 bytes.* holds 7"),
        (header(2, 2, 2) + bytes(9), "is too long: its header says 2 x 2 x 2 = 8 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_named(
    tmp_path: Path, content: bytes, message: str, packed: bool
) -> None:
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_damaged_compression_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    write_idx(path, np.arange(250, dtype=np.uint8))
    good = path.read_bytes()
    for bad in (good[:-20], good[:-8] + bytes(8), b"no gzip", good[:100] + b"\xff" + good[101:]):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"x\.gz cannot be read and may be damaged"):
            read_idx(path, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_memory_follows_the_data_not_the_header(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("x.gz" if packed else "x")
    content = header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(1000)
    path.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="truncated"):
            read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_a_plain_file_is_preferred_to_a_packed_one(tmp_path: Path) -> None:
    assert find_idx(tmp_path, "x") is None
    (tmp_path / "x.gz").touch()
    assert find_idx(tmp_path, "x") == tmp_path / "x.gz"
    (tmp_path / "x").touch()
    assert find_idx(tmp_path, "x") == tmp_path / "x"


def test_images_and_labels_must_agree_in_number(tmp_path: Path) -> None:
    for name in ("train", "t10k"):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", np.zeros((3, 2, 2), np.uint8))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", np.zeros(2, np.uint8))
    with pytest.raises(DataError, match="has 3 train images but 2 train labels"):
        read_idx_sets(tmp_path)


def test_the_original_has_the_published_statistics(original: Path) -> None:
    train, test, classes = read_idx_sets(original)
    assert train.images.shape == (60000, 1, 28, 28)
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert classes[0] == "T-shirt/top"
    assert train.images.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert train.images.std() / 255 == pytest.approx(0.3530, abs=5e-5)
