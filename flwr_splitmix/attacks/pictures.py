"""Images with labels, as used by attacks and scores: pixels from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.data import ImageDataset


class PicturesError(ValueError):
    """Images do not fit their purpose."""


@dataclass(frozen=True)
class Pictures:
    """Images and their classes.

    Parameters
    ----------
    images
        float32 (n, C, H, W), 0 to 1.
    labels
        int64 (n,).
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @classmethod
    def of(cls, data: ImageDataset, indices: np.ndarray | Sequence[int] | None = None) -> Pictures:
        """Read a data set, or the examples at `indices`, without its normalisation."""
        rows = np.arange(len(data)) if indices is None else np.asarray(indices, dtype=np.int64)
        inputs, labels = data.batch(rows)
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (data.mean, data.std))
        return cls((inputs * std + mean).clamp_(0, 1), labels)

    def take(self, indices: Tensor | np.ndarray | slice) -> Pictures:
        """Return the images at `indices`."""
        rows = torch.from_numpy(indices) if isinstance(indices, np.ndarray) else indices
        return Pictures(self.images[rows], self.labels[rows])

    def without(self, others: Pictures) -> Pictures:
        """Return the images that are not among others, compared at 8 bits per pixel."""
        excluded = {image.tobytes() for image in _coarse(others.images)}
        remaining = [
            i for i, image in enumerate(_coarse(self.images)) if image.tobytes() not in excluded
        ]
        return self.take(torch.tensor(remaining, dtype=torch.int64))

    def divided(self, first: int, seed: int = 0) -> tuple[Pictures, Pictures]:
        """Return `first` images, drawn by the seed, and the others."""
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(self)))
        return self.take(order[:first]), self.take(order[first:])

    def fitted(self, shape: tuple[int, int, int]) -> Pictures:
        """Return the images in the shape (C, H, W): resized, a grey channel repeated.

        Raises
        ------
        PicturesError
            If the channels do not fit; the message gives both shapes.
        """
        if self.shape == shape:
            return self
        channels, height, width = shape
        if self.shape[0] not in (1, channels):
            raise PicturesError(
                f"the public images have shape {self.shape} (channels, height, width), the "
                f"attacked model takes {shape}: {self.shape[0]} channels cannot become {channels}; "
                "choose public data of as many channels"
            )
        images = self.images
        if self.shape[1:] != (height, width):
            images = F.interpolate(
                images, size=(height, width), mode="bilinear", antialias=True, align_corners=False
            ).clamp_(0, 1)
        return Pictures(images.expand(-1, channels, -1, -1).contiguous(), self.labels)


def _coarse(images: Tensor) -> np.ndarray:
    return np.asarray((images * 255).round().to(torch.uint8).numpy())
