"""Image files of any size and mode, decoded into one packed uint8 array."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.files.reading import check_regular
from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from io import BytesIO

    from PIL.Image import Image

log = logging.getLogger("flwr.splitmix")

_GREY_MODES = ("L", "1")
_DEEP_MODES = ("I", "F")  # 16 bits and more; converting would clip them


def decode_picture(
    source: Path | BytesIO | np.ndarray | None,
    name: str,
    *,
    image_size: int,
    channels: int | None,
) -> np.ndarray:
    """Decode one image, and resize it if it is larger than `image_size`.

    What is transparent shows white behind it.

    Parameters
    ----------
    source
        A file in a format that Pillow supports, or uint8 pixels (H, W) or (H, W, 3); None if a
        data set has a row without an image.
    name
        Name of the image, for messages.
    image_size
        S. An image with a side longer than S becomes S x S (bilinear), whatever its aspect ratio;
        a smaller one keeps its size.
    channels
        1: grey, 3: RGB, None: grey if the image's mode is "L" or "1", else RGB.

    Returns
    -------
    np.ndarray
        uint8 (H, W) if grey, (H, W, 3) if RGB.

    Raises
    ------
    DataError
        If the image is missing, cannot be decoded or has more than 8 bits per channel.
    """
    if source is None:
        raise DataError(f"{name} is missing")
    pil = import_extra("PIL.Image", "reading pictures")
    ops = import_extra("PIL.ImageOps", "reading pictures")
    try:
        if isinstance(source, Path):
            check_regular(source)  # of a pipe the reader would wait for the end
        opened = pil.fromarray(source) if isinstance(source, np.ndarray) else pil.open(source)
        with opened as picture:
            if picture.mode.split(";")[0] in _DEEP_MODES:
                raise DataError(
                    f"{name} is a picture of mode {picture.mode!r}; "
                    "8 bits a channel are allowed, so convert it first"
                )
            # Cameras store images in the sensor's orientation and note the rotation.
            upright = _on_white(ops.exif_transpose(picture))
            grey = picture.mode in _GREY_MODES if channels is None else channels == 1
            converted = upright.convert("L" if grey else "RGB")
            if max(converted.size) > image_size:
                converted = _resize(converted, image_size)
            return np.asarray(converted)
    except (OSError, SyntaxError, TypeError, ValueError, pil.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or error  # without the path a second time
        if isinstance(error, pil.UnidentifiedImageError):  # which gives a stream's address
            reason = "its format is unknown"
        raise DataError(f"{name} cannot be read as a picture: {reason}") from error


def decode_pictures(
    pictures: Iterable[tuple[Path | BytesIO | np.ndarray | None, str]],
    *,
    image_size: int,
    channels: int | None,
    skip_corrupt: bool = False,
) -> tuple[list[np.ndarray], list[int]]:
    """Decode many images.

    Parameters
    ----------
    pictures
        Pairs of a source and a name, as for `decode_picture`.
    image_size, channels
        As for `decode_picture`.
    skip_corrupt
        Leave out images that cannot be decoded, with one warning that names the first of them.

    Returns
    -------
    tuple of list of np.ndarray and list of int
        The decoded images, and their indices in `pictures`.

    Raises
    ------
    DataError
        If images cannot be decoded and are not left out; the message names the first of them.
    """
    decoded, kept_places, wrong = [], [], []
    for place, (source, name) in enumerate(pictures):
        try:
            decoded.append(decode_picture(source, name, image_size=image_size, channels=channels))
            kept_places.append(place)
        except DataError as error:
            wrong.append(str(error))
    if wrong and not skip_corrupt:
        remedy = "it" if len(wrong) == 1 else "them"
        number = "" if len(wrong) == 1 else f"{len(wrong)} pictures cannot be used: "
        raise DataError(
            f"{number}{_first(wrong)}; repair {remedy}, or leave {remedy} out with "
            "skip-corrupt=true"
        )
    if wrong:
        log.warning(
            "left out (skip-corrupt): %d of %s: %s",
            len(wrong), counted(len(wrong) + len(kept_places), "picture"), _first(wrong),
        )  # fmt: skip
    return decoded, kept_places


def _first(wrong: Sequence[str], number: int = 10) -> str:
    more = len(wrong) - number
    return "; ".join(wrong[:number]) + (f"; and {more} others" if more > 0 else "")


def pack_pictures(splits: Sequence[Sequence[np.ndarray]], image_size: int) -> list[np.ndarray]:
    """Convert the decoded images of all splits to one size and one number of channels.

    If all have the same size, they keep it; otherwise each is resized to S x S (bilinear). They
    stay grey if all are grey.

    Parameters
    ----------
    splits
        Images of each split, as returned by `decode_picture` with this `image_size`.
    image_size
        S.

    Returns
    -------
    list of np.ndarray
        uint8 (n, C, H, W) for each split, with the same (C, H, W) for all.
    """
    pictures = [picture for split in splits for picture in split]
    channels = 3 if any(picture.ndim == 3 for picture in pictures) else 1
    sizes = {picture.shape[:2] for picture in pictures}
    height, width = sizes.pop() if len(sizes) == 1 else (image_size, image_size)
    packed = []
    for split in splits:
        array = np.empty((len(split), channels, height, width), np.uint8)
        for row, picture in enumerate(split):
            if picture.shape[:2] != (height, width):
                pil = import_extra("PIL.Image", "resizing pictures")
                picture = np.asarray(_resize(pil.fromarray(picture), image_size))
            array[row] = picture if picture.ndim == 2 else picture.transpose(2, 0, 1)
        packed.append(array)
    return packed


def _on_white(picture: Image) -> Image:
    """Return a picture as it looks on white paper: colours under transparency mean nothing."""
    if not picture.has_transparency_data:
        return picture
    pil = import_extra("PIL.Image", "reading pictures")
    white = pil.new("RGBA", picture.size, "white")
    composed: Image = pil.alpha_composite(white, picture.convert("RGBA"))
    return composed


def _resize(picture: Image, image_size: int) -> Image:
    pil = import_extra("PIL.Image", "resizing pictures")
    resized: Image = picture.resize((image_size, image_size), pil.Resampling.BILINEAR)
    return resized
