"""Images that a set of the `datasets` library stores as numbers, not as encoded pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from flwr_splitmix.data import DataError, load_images
from tests.data.images.arrow import grey_levels, save


def test_images_stored_as_numbers_are_read(tmp_path: Path) -> None:
    plain = datasets.Dataset.from_dict({"image": [[[5, 5], [5, 5]]], "label": [0]})
    sets = load_images(save(tmp_path, train=plain, test=plain), image_size=2)
    assert grey_levels(sets.train) == [5]
    too_bright = datasets.Dataset.from_dict({"image": [[[5, 256]]], "label": [0]})
    with pytest.raises(DataError, match=r"pixels must lie in 0\.\.255"):
        load_images(save(tmp_path / "bright", train=too_bright, test=plain))


@pytest.mark.parametrize(("channels", "level"), [(1, 5), (2, 155), (3, 5), (4, 155)])
def test_images_stored_as_numbers_may_have_an_alpha_channel(
    channels: int, level: int, tmp_path: Path
) -> None:
    """Of the transparent part white shows."""
    pixel = [5] * channels
    if channels in (2, 4):
        pixel[-1] = 102  # of 255: 0.4 * 5 + 0.6 * 255
    plain = datasets.Dataset.from_dict({"image": [[[pixel] * 2] * 2], "label": [0]})
    sets = load_images(save(tmp_path, train=plain, test=plain), image_size=2)
    assert grey_levels(sets.train) == [level]


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 5, 6), (4, 5, 1, 1)])
def test_images_stored_as_numbers_of_another_shape_are_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Pillow's reason would leave out the shapes that are allowed."""
    pixels = np.zeros((1, *shape), int).tolist()
    plain = datasets.Dataset.from_dict({"image": pixels, "label": [0]})
    message = rf"int64 of shape {re.escape(str(shape))}; expected .* \(H, W\) or \(H, W, C\)"
    with pytest.raises(DataError, match=message):
        load_images(save(tmp_path, train=plain, test=plain))


NUMBERS = datasets.Value("uint8")


@pytest.mark.parametrize(
    ("feature", "shape", "description"),
    [
        (datasets.List(datasets.List(datasets.Value("float32"))), (4, 5), "float32 of shape"),
        (datasets.Array2D((4, 5), "float32"), (4, 5), "float32 of shape"),
        (datasets.List(datasets.List(datasets.List(NUMBERS))), (4, 5, 6), "uint8 of shape"),
        (datasets.Array3D((4, 5, 6), "uint8"), (4, 5, 6), "uint8 of shape"),
    ],
)
def test_numbers_that_are_refused_are_named_by_the_type_that_they_are_stored_as(
    feature: Any, shape: tuple[int, ...], description: str, tmp_path: Path
) -> None:
    """Not by that of NumPy's array of Python's numbers: int64 for uint8, float64 for float32."""
    plain = datasets.Dataset.from_dict(
        {"image": [np.zeros(shape).tolist()], "label": [0]},
        features=datasets.Features({"image": feature, "label": datasets.Value("int64")}),
    )
    with pytest.raises(DataError, match=f"an image is stored as {description}"):
        load_images(save(tmp_path, train=plain, test=plain))


@pytest.mark.parametrize(
    ("shape", "has_advice"),
    [((1, 6, 6), True), ((3, 6, 5), True), ((4, 6, 5), True), ((6, 6, 5), False)],
)
def test_channels_in_front_are_said_to_belong_at_the_end(
    shape: tuple[int, ...], has_advice: bool, tmp_path: Path
) -> None:
    """Torch has them in front, so the message says what to do."""
    plain = datasets.Dataset.from_dict({"image": np.zeros((1, *shape), int).tolist(), "label": [0]})
    with pytest.raises(DataError, match="expected encoded pictures") as raised:
        load_images(save(tmp_path, train=plain, test=plain))
    assert str(raised.value).endswith("; move the channels to the end (transpose)") is has_advice
