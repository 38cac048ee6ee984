"""timm's vision models, cut into two or three parts; one file per family."""

from flwr_splitmix.segments.vision.cut import split_vision_model, split_vision_parts

__all__ = ["split_vision_model", "split_vision_parts"]
