"""How a run's pictures are normalised, and its record of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from PIL import Image

from flwr_splitmix import Run
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.inputs import record_inputs, recorded_inputs
from flwr_splitmix.data import DataError, load_images
from tests.apps.vision_fit import read


@pytest.fixture
def colours(tmp_path: Path) -> str:
    """Return a folder of pictures in two colours."""
    for split in ("train", "test"):
        for name in ("red", "blue"):
            folder = tmp_path / "colours" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 6), name).save(folder / "0.png")
    return str(tmp_path / "colours")


@pytest.mark.parametrize(
    "model", ["deit_tiny_patch16_224", "vit_tiny_patch16_224", "resnet18.a1_in1k"]
)
def test_pretrained_weights_get_pictures_as_timm_trained_them(model: str, colours: str) -> None:
    expected: Any = timm.get_pretrained_cfg(model)
    config = read(model=model, pretrained=True, depth=0, dataset=colours)
    images = images_of(config).train
    assert images.mean == pytest.approx(expected.mean)
    assert images.std == pytest.approx(expected.std)
    grey = images_of(read(model=model, pretrained=True, depth=0)).train
    assert grey.mean == pytest.approx((sum(expected.mean) / 3,))
    assert grey.std == pytest.approx((sum(expected.std) / 3,))


def test_random_weights_get_the_usual_normalisation(colours: str) -> None:
    assert images_of(read(model="deit_tiny_patch16_224", dataset=colours)).train.mean == (0.5,) * 3
    assert images_of(read(model="deit_tiny_patch16_224")).train.mean == (0.2860,)


def test_a_folder_of_one_class_is_refused_by_its_key(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split / "red"
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 6), "red").save(folder / "0.png")
    with pytest.raises(
        DataError, match=r"dataset is '.*', but its only class is 'red'; needed are"
    ):
        images_of(read(dataset=str(tmp_path)))


def test_a_mean_needs_a_standard_deviation() -> None:
    with pytest.raises(DataError, match="of mean and std one is given"):
        load_images("fashion-mnist-small", mean=(0.5,))


def test_a_run_records_its_classes_and_its_normalisation(tmp_path: Path, colours: str) -> None:
    config = read(dataset=colours, image_size=8, patch_size=4)
    run = Run.create({}, name="test", home=tmp_path)
    record_inputs(run, images_of(config))
    recorded = recorded_inputs(run, read())  # the record is read, not the run's images
    assert recorded == json.loads((run.path / "inputs.json").read_text())
    assert recorded["classes"] == ["blue", "red"]
    assert recorded["preprocessing"] == {
        "channels": 3,
        "stored_size": [6, 8],
        "image_size": 8,
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
