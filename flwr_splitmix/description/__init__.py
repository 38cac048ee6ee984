"""What a client says of itself when it attaches to a round: keys, ranges, one reader."""

from flwr_splitmix.description.entries import (
    MAX_CALIBRATION,
    MAX_SPLIT_BATCH,
    MAX_USHAPE_BATCH,
    SHAPES,
    Description,
    NodeDescription,
    SegmentDescription,
    SplitDescription,
    UploadFacts,
    UShapeDescription,
    read_description,
)
from flwr_splitmix.description.fields import DescriptionError, Whole, keys_of

__all__ = [
    "MAX_CALIBRATION",
    "MAX_SPLIT_BATCH",
    "MAX_USHAPE_BATCH",
    "SHAPES",
    "Description",
    "DescriptionError",
    "NodeDescription",
    "SegmentDescription",
    "SplitDescription",
    "UShapeDescription",
    "UploadFacts",
    "Whole",
    "keys_of",
    "read_description",
]
