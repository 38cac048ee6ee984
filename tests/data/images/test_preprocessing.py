"""A picture gets to a model as the training images did, whatever its size and mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flwr_splitmix.data import DataError, load_images
from flwr_splitmix.data.images.preprocessing import Preprocessing

SIZES = {"alike": [(6, 8)] * 2, "alike and larger": [(30, 20)] * 2, "mixed": [(9, 5), (40, 16)]}


@pytest.fixture(params=SIZES)
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder of random pictures, all of one size or of several."""
    rng = np.random.default_rng(3)
    for split in ("train", "test"):
        for number, (height, width) in enumerate(SIZES[request.param]):
            folder = tmp_path / split / str(number)
            folder.mkdir(parents=True)
            pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "0.png")
    return tmp_path


@pytest.mark.parametrize("channels", [1, 3])
def test_a_training_picture_is_read_as_it_was_in_training(pictures: Path, channels: int) -> None:
    train = load_images(str(pictures), image_size=12, channels=channels).train
    steps = Preprocessing.of(train)
    files = [pictures / "train" / name / "0.png" for name in "01"]
    expected, _ = train.batch(np.arange(2))
    # A picture of mixed sizes is resized once here and may be twice there.
    torch.testing.assert_close(steps.batch(files), expected, atol=2 / 255 / 0.5, rtol=0)
    assert Preprocessing.from_facts(steps.facts()) == steps


@pytest.mark.parametrize(("side", "levels"), [(32, 0), (28, 0), (16, 1)])
def test_a_shipped_image_is_read_as_in_training_to_the_level_that_export_says(
    side: int, levels: int, tmp_path: Path
) -> None:
    """It is not exact, as torch shrinks where Pillow does here."""
    images, _ = load_images(
        "fashion-mnist-small", image_size=28, mean=(0.0,), std=(1.0,)
    ).train.batch(np.arange(8))
    files = [tmp_path / f"{number}.png" for number in range(8)]
    for image, file in zip(images, files, strict=True):
        Image.fromarray((image[0] * 255).round().byte().numpy()).save(file)
    train = load_images("fashion-mnist-small", image_size=side, mean=(0.0,), std=(1.0,)).train
    expected, _ = train.batch(np.arange(8))
    difference = (255 * (Preprocessing.of(train).batch(files) - expected)).round().abs()
    assert difference.max() == levels


def test_a_large_picture_is_resized_before_it_is_padded(tmp_path: Path) -> None:
    steps = Preprocessing(1, (28, 28), 32, (0.0,), (1.0,))
    Image.new("RGB", (300, 200), "white").save(tmp_path / "white.jpg")
    (image,) = steps.batch([tmp_path / "white.jpg"])
    assert image.shape == (1, 32, 32)
    assert image[0, 2:30, 2:30].min() == 1
    assert image.sum() == 28 * 28


def test_what_is_no_description_is_said() -> None:
    with pytest.raises(DataError, match="not a description of a preprocessing: 'stored_size'"):
        Preprocessing.from_facts({"channels": 1})
