"""The shipped subset: balanced, small, licensed, and the same as its recipe makes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flwr_splitmix.data.images
from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.idx import read_idx_split
from flwr_splitmix.data.images.make_small import first_of_each_class, main, make_small

SHIPPED = Path(flwr_splitmix.data.images.__file__).parent / "fashion_mnist_small"


def test_classes_are_balanced() -> None:
    sets = load_images("fashion-mnist-small")
    assert np.bincount(sets.train.labels).tolist() == [600] * 10
    assert np.bincount(sets.test.labels).tolist() == [200] * 10


def test_it_is_small_and_carries_its_licence() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 4_000_000
    licence = (SHIPPED / "LICENSE").read_text()
    for words in ("2017 Zalando SE", "Permission is hereby granted", "WITHOUT WARRANTY OF ANY"):
        assert words in licence
    assert "make_small" in (SHIPPED / "README.txt").read_text()


def test_its_images_are_the_first_of_each_class_of_the_original(original: Path) -> None:
    for split, count in (("train", 600), ("test", 200)):
        images, labels = read_idx_split(original, split)
        small_images, small_labels = read_idx_split(SHIPPED, split)
        for label in range(10):
            first = images[labels == label][:count]
            assert first.tobytes() == small_images[small_labels == label].tobytes()


def test_the_recipe_makes_the_shipped_files_again(original: Path, tmp_path: Path) -> None:
    make_small(original, tmp_path / "again")
    assert {path.name for path in SHIPPED.iterdir()} == {
        *(path.name for path in (tmp_path / "again").iterdir()),
        "LICENSE",
        "README.txt",
    }
    for split in ("train", "test"):
        remade, shipped = (
            read_idx_split(folder, split) for folder in (tmp_path / "again", SHIPPED)
        )
        assert np.array_equal(remade.images, shipped.images)
        assert np.array_equal(remade.labels, shipped.labels)


def test_the_first_of_each_class_stay_in_the_order_of_the_file() -> None:
    assert first_of_each_class(np.array([1, 0, 1, 1, 0, 0]), 2).tolist() == [0, 1, 2, 4]
    with pytest.raises(DataError, match="class 1 has 1 sample; 2 are needed"):
        first_of_each_class(np.array([0, 0, 1]), 2)


def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(tmp_path / "target")])
    assert "has neither train-images-idx3-ubyte nor" in capsys.readouterr().err
