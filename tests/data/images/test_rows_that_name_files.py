"""Rows of saved data sets and of the hub that name a file instead of holding a picture."""

from __future__ import annotations

from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from PIL import Image

from flwr_splitmix.data import DataError, load_images
from tests.data.images.arrow import CLASS_LABEL, grey_levels, picture_bytes, save, split


def save_names(folder: Path, path: str | None) -> str:
    """Save a set whose second training picture is a file's name, which `datasets` never writes."""
    part = split([10, 20, 30], [0, 1, 1])
    saved = save(folder, train=part, test=part)
    (file,) = (Path(saved) / "train").glob("*.arrow")
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_stream(source).read_all()
    rows = table.column("image").to_pylist()
    rows[1] = {"bytes": None, "path": path}
    images = pa.array(rows, table.schema.field("image").type)
    table = table.set_column(1, table.schema.field("image"), images)
    with pa.OSFile(f"{file}.new", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    Path(f"{file}.new").replace(file)
    return saved


def from_the_hub(monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """Let a saved set be one of the hub; return its name there."""
    loaded = datasets.load_from_disk(source)
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: loaded)
    return "owner/names"


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("name", ["{}/passport.png", "../passport.png", "link.png", "a\0b"])
def test_a_row_opens_no_file_of_the_reader(
    name: str, hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's set could otherwise make an example of any picture on the reader's disk."""
    Image.new("L", (6, 6), 123).save(tmp_path / "passport.png")
    source = save_names(tmp_path, name.format(tmp_path))
    (Path(source) / "link.png").symlink_to(tmp_path / "passport.png")
    if hub:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(source))
        source = from_the_hub(monkeypatch, source)
    place = "the caches of datasets" if hub else "that folder"
    with pytest.raises(
        DataError,
        match=rf"image 1 of '.*(saved|names)' is not a picture, but the name of a file .*{place}",
    ) as refused:
        load_images(source, image_size=8, skip_corrupt=True)
    leads = f"'link.png', which leads to '{(tmp_path / 'passport.png').resolve()}': "
    assert (leads in str(refused.value)) == (name == "link.png")


@pytest.mark.parametrize(
    "cache", ["HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH", ""]
)
def test_a_row_of_the_hub_may_name_what_was_downloaded(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    Image.new("L", (6, 6), 123).save(folder / "own.png")
    if cache:
        monkeypatch.setattr(datasets.config, cache, folder)
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    source = from_the_hub(monkeypatch, save_names(tmp_path, str(folder / "own.png")))
    assert grey_levels(load_images(source, image_size=8).train) == [10, 123, 30]


@pytest.mark.parametrize("absolute", [False, True])
def test_a_row_may_name_a_file_of_its_own_set(absolute: bool, tmp_path: Path) -> None:
    picture = tmp_path / "saved" / "pictures" / "own.png"
    source = save_names(tmp_path, str(picture) if absolute else "pictures/own.png")
    picture.parent.mkdir()
    Image.new("L", (6, 6), 123).save(picture)
    assert grey_levels(load_images(source, image_size=8).train) == [10, 123, 30]


def test_a_row_with_neither_a_picture_nor_a_name_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"image 1 of '.*' is missing"):
        load_images(save_names(tmp_path, None), image_size=8)


def test_a_row_whose_name_is_no_text_is_missing(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict(
        {"image": [{"bytes": None, "path": 7}, {"bytes": picture_bytes(30), "path": 8}]}
    ).add_column("label", [0, 1], feature=CLASS_LABEL)
    source = save(tmp_path, train=part, test=part)
    with pytest.raises(DataError, match=r"image 0 of '.*' is missing"):
        load_images(source, image_size=8)
    assert grey_levels(load_images(source, image_size=8, skip_corrupt=True).train) == [30]
