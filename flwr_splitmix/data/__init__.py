"""Images for split learning: loaded by name, read in batches, divided among clients."""

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.images import ImageDataset
from flwr_splitmix.data.partition import client_split, partition_indices
from flwr_splitmix.data.sets import ImageSets
from flwr_splitmix.data.sources import load_images

__all__ = [
    "DataError",
    "ImageDataset",
    "ImageSets",
    "client_split",
    "load_images",
    "partition_indices",
]
