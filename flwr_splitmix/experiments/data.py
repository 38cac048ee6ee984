"""A cell's images: each client's part and the common test set, on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from flwr_splitmix.data import DataError, ImageDataset, load_images, partition_indices
from flwr_splitmix.data.examples import Example
from flwr_splitmix.data.images.partition import labels_to_divide_by
from flwr_splitmix.experiments.cells import DIRICHLET, Cell
from flwr_splitmix.experiments.scored_rows import rows_to_test
from flwr_splitmix.segments.vision.zoo import pretrained_normalisation
from flwr_splitmix.words import are, counted


class ResidentImages(Dataset[Example]):
    """Images kept on their device as bytes, so that no step waits for the host.

    Parameters
    ----------
    images
        The images, in their order.
    device
        Device of the inputs; labels stay on the CPU, from where they are uploaded.
    resize
        Side in pixels to which batches are enlarged when read; None for no resizing.
    """

    def __init__(
        self, images: ImageDataset, device: torch.device, *, resize: int | None = None
    ) -> None:
        pixels, self.labels = images.pixels(np.arange(len(images)))
        # As floats, the faces of CelebA would take four times the memory: 62 GB.
        self._pixels = pixels.to(device)
        self._mean, self._std = (
            torch.tensor(value, device=device).view(-1, 1, 1) for value in (images.mean, images.std)
        )
        self.resize = resize

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> Example:
        inputs, labels = self.batch(np.asarray([item]))
        return inputs[0], labels[0]

    def batch(self, indices: np.ndarray) -> Example:
        """Return (float32 (b, C, S, S) on the device, int64 labels on the CPU) at `indices`."""
        rows = torch.as_tensor(indices)
        pixels = self._pixels[rows.to(self._pixels.device)]
        inputs = pixels.float().div_(255).sub_(self._mean).div_(self._std)
        if self.resize is not None:
            size = (self.resize, self.resize)
            inputs = F.interpolate(inputs, size=size, mode="bilinear", antialias=True)
        return inputs, self.labels[rows]


class CellData(NamedTuple):
    """Data of a cell for training and evaluation; `pooled` has the images of all clients."""

    clients: list[ImageDataset]
    pooled: ImageDataset
    test: ImageDataset
    channels: int
    num_classes: int


def load_cell_data(cell: Cell, source: str) -> CellData:
    """Read the data set and divide it among the cell's clients, as `client_split` does.

    If the model has pretrained weights, images are normalised as they require.

    Parameters
    ----------
    source
        See `load_images`.

    Raises
    ------
    DataError
        If the data set cannot be read, or is too small for the cell.
    """
    pretrained = dict(cell.model_options).get("pretrained", False)
    mean, std = (pretrained_normalisation(cell.model) if pretrained else None) or (None, None)
    sets = load_images(source, image_size=cell.recipe.image_size, mean=mean, std=std)
    samples = cell.recipe.samples
    labels = labels_to_divide_by(sets.train, cell.partition)
    divided = partition_indices(
        labels, cell.clients, scheme=cell.partition, alpha=DIRICHLET, seed=cell.seed
    )
    parts = [part[:samples] if samples else part for part in divided]
    fewest = min(len(part) for part in parts)
    if not fewest or (cell.partition == "iid" and fewest < samples):
        raise DataError(
            f"the {counted(len(sets.train), 'training image')} of {sets.name!r} "
            f"{are(len(sets.train))} too few for {counted(cell.clients, 'client')} with "
            f"{samples or 'some'} each ({cell.partition})"
        )
    return CellData(
        [sets.train.subset(part) for part in parts],
        sets.train.subset(np.concatenate(parts)),
        _test_choice(sets.test, cell.recipe.test_images),
        sets.train.shape[0],
        len(sets.classes),
    )


def _test_choice(test: ImageDataset, images: int) -> ImageDataset:
    chosen = rows_to_test(len(test), images)
    return test if chosen is None else test.subset(chosen)
