"""Labelled images in one packed array, read as normalised float batches of square images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flwr_splitmix.words import counted, described


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Images stored as uint8, and padded with black to S x S and normalised when they are read.

    A sample is `(pad(image) / 255 - mean) / std`; the padding is centred (an odd pixel goes to the
    bottom or the right). Subsets share the packed array.

    Parameters
    ----------
    images
        uint8 of shape (n, C, H, W), H <= S and W <= S; n = 0 is allowed. Not copied.
    labels
        Integers of shape (n,), each in 0..num_classes-1; or multi-label, of shape
        (n, num_classes), 1 for each label that an image has, and else 0. Copied only if not int64
        already.
    num_classes
        Number of classes or labels, >= 1, even if some do not occur.
    image_size
        S, the side in pixels of the square images returned.
    mean, std
        Mean and standard deviation of pixel values scaled to 0..1, for all channels or per
        channel; `std` > 0.
    index
        Integers of shape (m,): the rows of `images` in this data set, in order. None: all rows.

    Raises
    ------
    ValueError
        If an argument has another dtype, shape or range than stated above.
    IndexError
        If `index` contains a row that `images` does not have.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        num_classes: int,
        image_size: int = 32,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.5,
        index: np.ndarray | None = None,
    ) -> None:
        _check_arrays(images, labels, num_classes)
        if max(images.shape[2:]) > image_size:
            raise ValueError(
                f"images are {images.shape[2]} x {images.shape[3]} pixels but image_size is "
                f"{image_size}: an image may be at most as large; resize it when it is loaded"
            )
        self._images = _read_only(images)
        self._labels = _read_only(labels.astype(np.int64, copy=False))
        self._index = None if index is None else _read_only(_positions(index, len(images)))
        self.num_classes = num_classes
        self.image_size = image_size
        self.mean = _per_channel(mean, images.shape[1], "mean")
        self.std = _per_channel(std, images.shape[1], "std")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it must be greater than 0 in every channel")

    def __len__(self) -> int:
        return len(self._images) if self._index is None else len(self._index)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batch(np.asarray([item]))
        return images[0], labels[0]

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Read several samples at once.

        Parameters
        ----------
        indices
            Integers of shape (b,), each in 0..len-1 (or negative, from the end); b = 0 is allowed.

        Returns
        -------
        tuple of Tensor
            float32 (b, C, S, S) images and int64 (b,) or (b, num_classes) labels, owned by the
            caller.

        Raises
        ------
        ValueError
            If `indices` are not integers in one dimension.
        IndexError
            If an index lies outside this dataset.
        """
        pixels, labels = self.pixels(indices)
        mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (self.mean, self.std))
        return pixels.float().div_(255).sub_(mean).div_(std), labels

    def pixels(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Read several samples as they are stored, padded but not normalised.

        Parameters, labels and errors are those of `batch`; images are uint8 (b, C, S, S).
        """
        rows = _positions(indices, len(self))
        if self._index is not None:
            rows = self._index[rows]
        channels, height, width = self._images.shape[1:]
        top, left = (self.image_size - height) // 2, (self.image_size - width) // 2
        canvas = np.zeros((len(rows), channels, self.image_size, self.image_size), np.uint8)
        canvas[:, :, top : top + height, left : left + width] = self._images[rows]
        return torch.from_numpy(canvas), torch.from_numpy(self._labels[rows])

    def subset(self, indices: np.ndarray) -> ImageDataset:
        """Return the data set of these samples, in this order, without copying images.

        Parameters
        ----------
        indices
            As for `batch`: indices in this data set, even if it is itself a subset.

        Raises
        ------
        ValueError, IndexError
            As for `batch`.
        """
        rows = _positions(indices, len(self))
        return ImageDataset(
            self._images,
            self._labels,
            num_classes=self.num_classes,
            image_size=self.image_size,
            mean=self.mean,
            std=self.std,
            index=rows if self._index is None else self._index[rows],
        )

    @property
    def labels(self) -> np.ndarray:
        """Labels of this dataset's samples, int64 (len,) or (len, num_classes), read-only."""
        return self._labels if self._index is None else _read_only(self._labels[self._index])

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of the labels."""
        return self._labels.ndim == 2

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, S, S) of one sample."""
        return self._images.shape[1], self.image_size, self.image_size

    @property
    def stored_size(self) -> tuple[int, int]:
        """Height and width (H, W) of the images before padding."""
        return self._images.shape[2], self._images.shape[3]


def _check_arrays(images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    for name, array in (("images", images), ("labels", labels)):
        unchecked: object = array
        if not isinstance(unchecked, np.ndarray):
            raise ValueError(
                f"{name} are {described(unchecked)}; expected a NumPy array, which of a tensor is "
                f"{name}.numpy()"
            )
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(
            f"images are {images.dtype} of shape {images.shape}; "
            "they must be uint8 of shape (n, channels, height, width)"
        )
    n = len(images)
    if labels.dtype.kind not in "iu" or labels.shape not in ((n,), (n, num_classes)):
        raise ValueError(
            f"labels are {labels.dtype} of shape {labels.shape}; they must be integers of shape "
            f"({n},), one per image, or ({n}, {num_classes}) if an image may have several"
        )
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; it must be 1 or more")
    most = 1 if labels.ndim == 2 else num_classes - 1
    if len(labels) and (labels.min() < 0 or labels.max() > most):
        wrong = labels[(labels < 0) | (labels > most)][0]
        raise ValueError(f"a label is {wrong}; labels must lie in 0..{most}")


def _positions(indices: np.ndarray, length: int) -> np.ndarray:
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"indices are {array.dtype} of shape {array.shape}; they must be integers of shape (b,)"
        )
    rows = array.astype(np.int64)
    if array.size and (rows.min() < -length or rows.max() >= length):
        wrong = rows[(rows < -length) | (rows >= length)][0]
        raise IndexError(f"index {wrong} lies outside a dataset of {counted(length, 'image')}")
    # Not negative, so that they index the rows of a subset.
    return np.where(rows < 0, rows + length, rows)


def _per_channel(value: float | Sequence[float], channels: int, name: str) -> tuple[float, ...]:
    values = tuple(float(entry) for entry in np.atleast_1d(np.asarray(value)))
    if len(values) not in (1, channels) or not np.isfinite(values).all():
        raise ValueError(
            f"{name} is {value}; it must be one finite number or {channels}, one per channel"
        )
    return values * channels if len(values) == 1 else values


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
