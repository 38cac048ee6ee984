"""Fixtures for tests of the data package: the original files, and small sets on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flwr_splitmix.data.images.idx import IMAGE_FILES, LABEL_FILES, write_idx

SHARED = Path(__file__).parents[3] / "shared" / "data" / "fashion_mnist"

IdxWriter = Callable[..., Path]


@pytest.fixture(scope="session")
def original() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the original Fashion-MNIST is not at ../shared/data/fashion_mnist")
    return SHARED


@pytest.fixture
def write_idx_set(tmp_path: Path) -> IdxWriter:
    """Return a function that writes random images with the given labels as four idx files."""

    def write(train: list[int], test: list[int], *, size: int = 28, name: str = "digits") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        rng = np.random.default_rng(7)
        for split, labels in (("train", train), ("test", test)):
            images = rng.integers(0, 256, (len(labels), size, size)).astype(np.uint8)
            write_idx(folder / f"{IMAGE_FILES[split]}.gz", images)
            write_idx(folder / f"{LABEL_FILES[split]}.gz", np.array(labels, np.uint8))
        return folder

    return write
