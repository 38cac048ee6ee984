"""Where a model is cut: lower segments, upper segments and the geometry of what crosses."""

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.patch_shuffle import log10_orders_with_target, log10_search_space
from flwr_splitmix.segments.shuffled_edge import split_shuffled_edge
from flwr_splitmix.segments.split_model import LowerSegment, SplitModel, UpperSegment
from flwr_splitmix.segments.vision import split_vision_model

__all__ = [
    "Geometry",
    "LowerSegment",
    "SplitModel",
    "UpperSegment",
    "log10_orders_with_target",
    "log10_search_space",
    "split_shuffled_edge",
    "split_vision_model",
]
