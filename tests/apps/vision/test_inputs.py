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
from flwr_splitmix.runs import RunError
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
    with pytest.raises(DataError, match=r"dataset is '.*', but its only class is 'red'; it must"):
        images_of(read(dataset=str(tmp_path)))


def test_a_mean_needs_a_standard_deviation() -> None:
    with pytest.raises(DataError, match="only one of mean and std is given"):
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


GREY = {
    "channels": 1, "stored_size": [28, 28], "image_size": 28, "mean": [0.5], "std": [0.5]
}  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("[]", "it holds no JSON object"),
        ("{}", "classes is None, which is not a list of names"),
        ({"classes": [1]}, "classes is [1], which is not a list of names"),
        ({"classes": []}, "classes is [], which is not a list of names"),
        ({"multi_label": "x"}, "multi_label is 'x'"),
        ({"preprocessing": [1]}, "preprocessing: this is not a description"),
        ({"preprocessing": {**GREY, "channels": "x" * 1000}}, "invalid literal"),
        ({"preprocessing": {**GREY, "channels": 2}}, "channels is 2; it must be 1 or 3"),
        ({"preprocessing": {**GREY, "mean": []}}, "mean and std need 1 number each"),
        ({"preprocessing": {**GREY, "image_size": 0}}, "an image has no pixels"),
        ({"preprocessing": {**GREY, "image_size": float("inf")}}, "cannot convert float infinity"),
    ],
)
def test_a_damaged_record_is_named_with_its_remedy(
    damage: str | dict[str, Any], reason: str, tmp_path: Path
) -> None:
    run = Run.create({}, name="test", home=tmp_path)
    whole = {"classes": ["cat", "dog"], "preprocessing": GREY}
    file = run.path / "inputs.json"
    file.write_text(json.dumps(whole))
    assert recorded_inputs(run, read()) == whole
    file.write_text(damage if isinstance(damage, str) else json.dumps({**whole, **damage}))
    with pytest.raises(RunError) as raised:
        recorded_inputs(run, read())
    assert str(raised.value).startswith(f"cannot read {file}: ")
    assert reason in str(raised.value)
    assert "; restore it, or remove it if the data set is here" in str(raised.value)
    assert len(str(raised.value)) < 400 + len(str(file))
