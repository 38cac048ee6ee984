"""A cell's model, cut in two as its method needs it, and put together again."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.segments import SplitModel, split_vision_model

SHUFFLED_EDGES: dict[str, Literal["patch", "batch", "spectral"]] = {
    "PatchShuffleSL": "patch",
    "BatchShuffleSL": "batch",
    "SpectralShuffleSL": "spectral",
}
"""Methods with a frozen edge, and how it shuffles."""


def make_segments(cell: Cell, channels: int, num_classes: int) -> SplitModel:
    """Build the cell's model from its seed and cut it in two.

    Raises
    ------
    ValueError
        As `split_vision_model` does.
    """
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "channels": channels,
        "image_size": cell.recipe.resize or cell.recipe.image_size,
        "seed": cell.seed,
        **dict(cell.model_options),
    }
    if cell.method in SHUFFLED_EDGES:
        from flwr_splitmix.segments.vision.shuffled_edge import split_shuffled_edge

        options |= {name: value for name, value in cell.options if name == "kappa"}
        return split_shuffled_edge(cell.model, method=SHUFFLED_EDGES[cell.method], **options)
    return split_vision_model(cell.model, **options)


def whole(segments: SplitModel) -> nn.Module:
    """Return the model that was cut: it computes what it did before."""
    return nn.Sequential(segments.lower, segments.upper)
