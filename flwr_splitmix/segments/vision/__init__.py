"""timm's vision models, cut into a lower and an upper segment; one file per family."""

from flwr_splitmix.segments.vision.cut import split_vision_model

__all__ = ["split_vision_model"]
