"""The preprocessing of a run's images, to be repeated on others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.images.packed import ImageDataset
from flwr_splitmix.data.images.pictures import decode_picture
from flwr_splitmix.words import counted


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing from an image of any size to the model's input.

    An image is converted to grey or RGB, with white for what is transparent, resized (bilinear) to
    `stored_size` unless it has that size, padded with black to `image_size` x `image_size`, scaled
    to 0..1 and normalised.

    Attributes
    ----------
    channels
        1 or 3.
    stored_size
        Height and width (H, W) of the training images before padding, at most `image_size`.
    image_size
        S, the side in pixels of the model's input.
    mean, std
        Mean and standard deviation of pixel values scaled to 0..1, one for each channel.
    """

    channels: int
    stored_size: tuple[int, int]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: ImageDataset) -> Self:
        """Return the preprocessing of a data set."""
        return cls(images.shape[0], images.stored_size, images.image_size, images.mean, images.std)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Make the preprocessing from the plain values that `facts` returns.

        Raises
        ------
        DataError
            If a value is missing, of the wrong type or out of range.
        """
        try:
            preprocessing = cls(
                channels=int(facts["channels"]),
                stored_size=(int(facts["stored_size"][0]), int(facts["stored_size"][1])),
                image_size=int(facts["image_size"]),
                mean=tuple(map(float, facts["mean"])),
                std=tuple(map(float, facts["std"])),
            )
            if preprocessing.channels not in (1, 3):
                raise ValueError(f"channels is {preprocessing.channels}; it must be 1 or 3")
            if not len(preprocessing.mean) == len(preprocessing.std) == preprocessing.channels:
                raise ValueError(
                    f"mean and std need {counted(preprocessing.channels, 'number')} each"
                )
            if min(*preprocessing.stored_size, preprocessing.image_size) < 1:
                raise ValueError("an image has no pixels")
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"this is not a description of a preprocessing: {error!s:.80}"
            ) from error
        return preprocessing

    def facts(self) -> dict[str, Any]:
        """Return the preprocessing as plain values."""
        return asdict(self)

    def batch(self, pictures: Sequence[Path]) -> Tensor:
        """Read image files and return the model's input, float32 (n, C, S, S).

        Raises
        ------
        DataError
            If a file cannot be read as an image.
        """
        pixels = np.stack([self._pixels(path) for path in pictures])
        images = ImageDataset(
            pixels,
            np.zeros(len(pixels), np.int64),
            num_classes=1,
            image_size=self.image_size,
            mean=self.mean,
            std=self.std,
        )
        return images.batch(np.arange(len(pixels)))[0]

    def _pixels(self, path: Path) -> np.ndarray:
        """Return one image, uint8 (C, H, W)."""
        picture = decode_picture(path, str(path), image_size=sys.maxsize, channels=self.channels)
        height, width = self.stored_size
        if picture.shape[:2] != (height, width):
            pil = import_extra("PIL.Image", "resizing pictures")
            resized = pil.fromarray(picture).resize((width, height), pil.Resampling.BILINEAR)
            picture = np.asarray(resized)
        return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
