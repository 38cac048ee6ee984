"""Folders of pictures: read back as written, and what is missing is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flwr_splitmix.data import DataError, load_images


def write(
    folder: Path, value: int | tuple[int, int, int], size: tuple[int, int], name: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mode = "L" if isinstance(value, int) else "RGB"
    Image.new(mode, size, value).save(folder / name)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for split, per_class in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for row in range(per_class):
                write(root / split / name, 100 * label + row, (8, 6), f"{row}.png")
    return root


def test_pictures_labels_and_names_are_read_back(pets: Path) -> None:
    sets = load_images(str(pets), image_size=8)
    assert sets.classes == ("cat", "dog")
    assert sets.name == str(pets)
    assert sets.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    images, _ = sets.train.batch(np.arange(6))
    assert images.shape == (6, 1, 8, 8)
    assert (images[:, :, 1:7] * 0.5 + 0.5).mul(255).round()[:, 0, 0, 0].tolist() == [
        0,
        1,
        2,
        100,
        101,
        102,
    ]
    assert (images[:, :, 0] == -1).all()  # black, (0 - 0.5) / 0.5, above the 6 rows


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_a_validation_split_serves_as_test(pets: Path, name: str) -> None:
    (pets / "test").rename(pets / name)
    assert len(load_images(str(pets)).test) == 4


def test_other_files_are_passed_over_and_counted(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a class of 8 .png and 20 .heic would have 8 pictures, without a word."""
    (pets / "train" / "cat" / ".hidden.png").write_text("no picture")
    (pets / "train" / ".cache").mkdir()
    assert len(load_images(str(pets)).train) == 6
    assert not caplog.records
    for name in ("a.HEIC", "b.heic", "notes"):
        (pets / "train" / "cat" / name).write_text("a cat")
    (pets / "train" / "dog" / "more").mkdir()
    assert len(load_images(str(pets)).train) == 6
    assert f"class folders in {pets / 'train'}: .heic (2), " in caplog.text
    assert "without a suffix (1)" in caplog.text
    assert "folders (1)" in caplog.text


def test_pictures_of_several_sizes_and_colours_are_brought_together(pets: Path) -> None:
    write(pets / "test" / "dog", (255, 0, 0), (100, 40), "red.jpg")
    sets = load_images(str(pets), image_size=16)
    assert sets.train.shape == sets.test.shape == (3, 16, 16)
    grey, _ = sets.train[3]
    torch_value = 100 / 255 * 2 - 1
    assert grey.flatten().tolist() == pytest.approx([torch_value] * 768)


def test_channels_can_be_chosen(pets: Path) -> None:
    assert load_images(str(pets), channels=3).train.shape == (3, 32, 32)
    write(pets / "test" / "dog", (255, 0, 0), (8, 6), "red.png")
    assert load_images(str(pets), channels=1).test.shape == (1, 32, 32)


def remove_test(root: Path) -> None:
    shutil.rmtree(root / "test")


def empty_train(root: Path) -> None:
    shutil.rmtree(root / "train")
    (root / "train").mkdir()


def empty_class(root: Path) -> None:
    shutil.rmtree(root / "train" / "dog")
    (root / "train" / "dog").mkdir()


def new_class(root: Path) -> None:
    (root / "test" / "dog").rename(root / "test" / "eel")


def broken_picture(root: Path) -> None:
    (root / "train" / "dog" / "1.png").write_bytes(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_test, "pets' has no test split; one named test, validation, val or valid"),
        (empty_train, "train has no class folders"),
        (empty_class, "class folder .*dog holds no picture"),
        (new_class, "test has the class 'eel', which .*train does not have"),
        (broken_picture, r"dog.1\.png cannot be read as a picture"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_missing_is_named(pets: Path, damage: object, message: str) -> None:
    assert callable(damage)
    damage(pets)
    with pytest.raises(DataError, match=message):
        load_images(str(pets))


def test_a_folder_is_read_again_once_its_files_have_changed(pets: Path) -> None:
    first = load_images(str(pets), image_size=8)
    assert load_images(str(pets), image_size=8) is first
    write(pets / "train" / "dog", 7, (8, 6), "3.png")
    second = load_images(str(pets), image_size=8)
    assert (len(first.train), len(second.train)) == (6, 7)
    write(pets / "train" / "dog", 8, (8, 6), "3.png")  # the same name and size, another picture
    third = load_images(str(pets), image_size=8)
    assert not second.train[6][0].equal(third.train[6][0])


def test_of_many_bad_pictures_the_first_are_named(pets: Path) -> None:
    for number in range(12):
        (pets / "train" / "cat" / f"broken-{number:02}.png").write_bytes(b"no picture")
    with pytest.raises(DataError) as raised:
        load_images(str(pets))
    message = str(raised.value)
    assert message.startswith("12 pictures cannot be used: ")
    assert "broken-09.png" in message
    assert "broken-10.png" not in message
    assert "; and 2 others; repair them, or leave them out with skip-corrupt=true" in message


def test_folders_behind_links_are_looked_at_too(pets: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for split in ("train", "test"):
        (linked / split).symlink_to(pets / split)
    (pets / "train" / "cat" / "again").symlink_to(pets)  # in a circle
    first = load_images(str(linked), image_size=8)
    write(pets / "train" / "dog", 7, (8, 6), "3.png")
    assert len(load_images(str(linked), image_size=8).train) == len(first.train) + 1
