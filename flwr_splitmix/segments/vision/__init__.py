"""Vision models of timm, cut into a lower and an upper segment; one file a family."""

from flwr_splitmix.segments.vision.cut import split_vision_model

__all__ = ["split_vision_model"]
