"""timm's vision models, cut into two or three parts; `layouts.LAYOUTS` has most families."""

from flwr_splitmix.segments.vision.cut import split_vision_model, split_vision_parts

__all__ = ["split_vision_model", "split_vision_parts"]
