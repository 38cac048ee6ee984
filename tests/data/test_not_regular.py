"""Pipes and devices in place of files of texts or of images: named as what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.idx import IMAGE_FILES, LABEL_FILES, find_idx, read_idx
from flwr_splitmix.data.texts.public import load_public_texts
from flwr_splitmix.data.texts.sets import load_text_sets

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture(params=["pipe", "device", "link"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path of a pipe, of a device, or of a link to one."""
    if request.param == "device":
        return "/dev/zero"
    if request.param == "pipe":
        os.mkfifo(tmp_path / "texts.csv")
    else:
        (tmp_path / "texts.csv").symlink_to("/dev/zero")
    return str(tmp_path / "texts.csv")


def test_as_dataset_it_is_no_regular_file(irregular: str) -> None:
    """The error is not that of a damaged data set of save_to_disk."""
    with pytest.raises(DataError, match="regular") as refused:
        load_text_sets(irregular, "generation")
    assert str(refused.value) == f"{irregular} cannot be read: it is not a regular file"


def test_as_test_rows_it_is_no_regular_file(irregular: str, tmp_path: Path) -> None:
    """The error is not that of a missing file."""
    (tmp_path / "rows.tsv").write_text("question\tanswer\na\tb\n")
    message = rf"no file '{irregular}' of test rows \(it is not a regular file\)$"
    with pytest.raises(DataError, match=message):
        load_text_sets(str(tmp_path / "rows.tsv"), "generation", test=irregular)


def test_as_public_texts_it_is_no_regular_file(irregular: str) -> None:
    """The error is not that of a missing file."""
    with pytest.raises(DataError, match=r"no public text .* \(it is not a regular file\); use"):
        load_public_texts(irregular)


def test_a_folder_as_test_rows_is_a_folder(tmp_path: Path) -> None:
    """The error is not that of a missing file."""
    (tmp_path / "rows.tsv").write_text("question\tanswer\na\tb\n")
    with pytest.raises(DataError, match=r"of test rows \(it is a folder\)$"):
        load_text_sets(str(tmp_path / "rows.tsv"), "generation", test=str(tmp_path))


def test_as_folder_of_images_it_is_no_folder(irregular: str) -> None:
    """The error is not that of a file in a folder's place."""
    with pytest.raises(DataError, match="is a pipe or a device, not a folder: use"):
        load_images(irregular)


@pytest.mark.parametrize("name", [IMAGE_FILES["train"], LABEL_FILES["test"]])
def test_as_an_idx_file_it_is_no_regular_file(name: str, tmp_path: Path) -> None:
    """The error is not that of a missing file."""
    os.mkfifo(tmp_path / name)
    path = find_idx(tmp_path, name)
    assert path is not None
    with pytest.raises(DataError, match=rf"{name} cannot be read .* it is not a regular file$"):
        read_idx(path, 3)
