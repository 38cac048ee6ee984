"""Data sets for split learning: loaded by name, read in batches, divided among clients."""

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images.packed import ImageDataset
from flwr_splitmix.data.images.partition import client_split
from flwr_splitmix.data.images.sets import ImageSets
from flwr_splitmix.data.images.sources import load_images
from flwr_splitmix.data.partition import partition_indices

__all__ = [
    "DataError",
    "ImageDataset",
    "ImageSets",
    "client_split",
    "load_images",
    "partition_indices",
]
