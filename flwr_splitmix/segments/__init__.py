"""Where a model is cut: lower segments, upper segments and the geometry of what crosses."""

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision import (
    LowerSegment,
    SplitModel,
    UpperSegment,
    split_vision_model,
)

__all__ = ["Geometry", "LowerSegment", "SplitModel", "UpperSegment", "split_vision_model"]
