"""A cell's model, cut in two as its method requires, and reassembled."""

from __future__ import annotations

from typing import Any

from torch import nn

from flwr_splitmix.attacks.defences import blurred
from flwr_splitmix.experiments.baselines import BASELINES
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.strategies import trial_of
from flwr_splitmix.segments import SplitModel, split_vision_model
from flwr_splitmix.strategies.vision_cut import split_for


def make_segments(cell: Cell, channels: int, num_classes: int) -> SplitModel:
    """Build the cell's model from its seed and cut it in two, as method and defence require.

    Raises
    ------
    ExperimentError
        If the method does not take the cell's options.
    ValueError
        If the model cannot be built or cut.
    """
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "channels": channels,
        "image_size": cell.recipe.resize or cell.recipe.image_size,
        "seed": cell.seed,
        **dict(cell.model_options),
    }
    if cell.method in BASELINES:  # it is reassembled, so the cut does not matter
        return split_vision_model(cell.model, **options)
    segments = split_for(trial_of(cell), cell.model, **options)
    return blurred(segments) if cell.defence == "blur" else segments


def whole(segments: SplitModel) -> nn.Module:
    """Return the segments as one model, which computes the same as before the cut."""
    return nn.Sequential(segments.lower, segments.upper)
