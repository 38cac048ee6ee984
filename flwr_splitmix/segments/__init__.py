"""Segments of cut models, and the geometry of the smashed data between them."""

from collections.abc import Callable

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.cut import split_vision_model, split_vision_parts
from flwr_splitmix.segments.vision.patch_shuffle import (
    PatchShuffle,
    log10_orders_with_target,
    log10_search_space,
)
from flwr_splitmix.segments.vision.shuffled_edge import split_shuffled_edge
from flwr_splitmix.segments.vision.split_model import (
    LowerSegment,
    SplitModel,
    UpperSegment,
    VisionParts,
)

SPLITS: dict[str, Callable[..., SplitModel]] = {
    "split_vision_model": split_vision_model,
    "split_shuffled_edge": split_shuffled_edge,
}
"""Functions that cut vision models, by the name that runs and exports record."""

__all__ = [
    "SPLITS",
    "Geometry",
    "LowerSegment",
    "PatchShuffle",
    "SplitModel",
    "UpperSegment",
    "VisionParts",
    "log10_orders_with_target",
    "log10_search_space",
    "split_shuffled_edge",
    "split_vision_model",
    "split_vision_parts",
]
