"""Decoding and packing pictures: modes, sizes, channels."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flwr_splitmix.data import DataError
from flwr_splitmix.data.images.pictures import decode_picture, pack_pictures


def png(picture: Image.Image, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    picture.save(file, "png", **options)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("mode", "channels", "shape"),
    [
        ("L", None, (6, 5)),
        ("1", None, (6, 5)),
        ("RGB", None, (6, 5, 3)),
        ("P", None, (6, 5, 3)),
        ("RGBA", None, (6, 5, 3)),
        ("LA", None, (6, 5, 3)),
        ("L", 3, (6, 5, 3)),
        ("RGB", 1, (6, 5)),
    ],
)
def test_the_mode_decides_the_channels_unless_told(
    mode: str, channels: int | None, shape: tuple[int, ...]
) -> None:
    decoded = decode_picture(png(Image.new(mode, (5, 6))), "x", image_size=32, channels=channels)
    assert decoded.shape == shape
    assert decoded.dtype == np.uint8


def test_pixels_of_a_small_picture_are_unchanged() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    decoded = decode_picture(png(Image.fromarray(pixels)), "x", image_size=9, channels=None)
    assert np.array_equal(decoded, pixels)


def transparent(mode: str) -> Image.Image:
    """Return a black picture of three columns: opaque, half and wholly transparent."""
    picture = Image.new("RGBA", (3, 2), (0, 0, 0, 255))
    picture.putpixel((1, 0), (0, 0, 0, 128))
    picture.putpixel((1, 1), (0, 0, 0, 128))
    picture.putpixel((2, 0), (0, 0, 0, 0))
    picture.putpixel((2, 1), (0, 0, 0, 0))
    return picture.convert(mode)


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_white(mode: str, channels: int | None) -> None:
    """Its own colour would make black icons without a background all black."""
    decoded = decode_picture(png(transparent(mode)), "x", image_size=9, channels=channels)
    assert decoded.shape == ((2, 3) if channels == 1 else (2, 3, 3))
    assert decoded.reshape(2, 3, -1)[..., 0].tolist() == [[0, 127, 255]] * 2


def test_colours_that_a_file_calls_transparent_are_white() -> None:
    palette = Image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
    palette.putpalette([0, 0, 0, 9, 9, 9])
    for picture, colour in (
        (palette, 0),
        (Image.fromarray(np.array([[0, 9]], np.uint8)), 0),
        (Image.fromarray(np.array([[[0] * 3, [9] * 3]], np.uint8)), (0, 0, 0)),
    ):
        file = png(picture, transparency=colour)
        decoded = decode_picture(file, "x", image_size=9, channels=3)
        assert decoded.tolist() == [[[255] * 3, [9] * 3]]


def test_opaque_pictures_with_alpha_keep_their_colours() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 4)).astype(np.uint8)
    pixels[..., 3] = 255
    decoded = decode_picture(png(Image.fromarray(pixels)), "x", image_size=9, channels=None)
    assert np.array_equal(decoded, pixels[..., :3])


def test_a_picture_taken_sideways_is_turned_upright() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # the first row lies at the right
    turned = decode_picture(
        png(Image.fromarray(pixels), exif=exif), "x", image_size=9, channels=None
    )
    assert np.array_equal(turned, np.rot90(pixels, -1))


def test_a_large_picture_becomes_square() -> None:
    half = np.zeros((64, 48), np.uint8)
    half[32:] = 200
    decoded = decode_picture(half, "x", image_size=16, channels=None)
    assert decoded.shape == (16, 16)
    assert (decoded[:7] == 0).all()
    assert (decoded[9:] == 200).all()


def test_bad_pictures_are_named(tmp_path: Path) -> None:
    broken = png(Image.new("L", (50, 50))).getvalue()[:60]
    with pytest.raises(DataError, match="cat 7 cannot be read as a picture"):
        decode_picture(io.BytesIO(broken), "cat 7", image_size=32, channels=None)
    with pytest.raises(DataError) as raised:
        decode_picture(io.BytesIO(b"junk"), "cat 7", image_size=32, channels=None)
    assert str(raised.value) == "cat 7 cannot be read as a picture: its format is unknown"
    with pytest.raises(DataError, match="cat 8 cannot be read as a picture"):
        decode_picture(tmp_path / "absent.png", "cat 8", image_size=32, channels=None)
    with pytest.raises(DataError, match="cat 9 is a picture of mode 'I;16'"):
        decode_picture(png(Image.new("I;16", (5, 5))), "cat 9", image_size=32, channels=None)


def test_one_size_is_kept_and_several_become_square() -> None:
    small, other = np.full((4, 6), 9, np.uint8), np.full((5, 5), 9, np.uint8)
    assert pack_pictures([[small, small], [small]], 8)[0].shape == (2, 1, 4, 6)
    train, test = pack_pictures([[small, small], [other]], 8)
    assert train.shape == (2, 1, 8, 8)
    assert test.shape == (1, 1, 8, 8)
    assert (train == 9).all()


def test_one_colour_picture_makes_all_of_them_rgb() -> None:
    grey, red = np.full((4, 4), 7, np.uint8), np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    train, test = pack_pictures([[grey], [red]], 8)
    assert train.shape == test.shape == (1, 3, 4, 4)
    assert (train == 7).all()
    assert test[0, :, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.usefixtures("impatient")
def test_a_pipe_is_no_picture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.png")
    with pytest.raises(DataError, match=r"p\.png cannot be read as a picture: it is not a regular"):
        decode_picture(tmp_path / "p.png", str(tmp_path / "p.png"), image_size=9, channels=None)
