"""Segments with fresh weights, of the architecture of a system under attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from flwr_splitmix.attacks.defences import Defence, blurred
from flwr_splitmix.segments.vision.split_model import SplitModel
from flwr_splitmix.strategies.option_trial import trial_strategy
from flwr_splitmix.strategies.vision_cut import split_for


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A vision model, cut as a method and a defence need it.

    Parameters
    ----------
    method, options
        Name of the strategy, and its own options; labels among them are not used.
    model, model_options
        Arguments of `split_vision_model`: "depth", "patch_size", "cut_at", ...
    num_classes, channels, image_size
        Number of classes; channels and side of the images, in pixels.
    defence
        Of the clients, beside the method.
    """

    method: str
    options: Mapping[str, Any]
    model: str
    model_options: Mapping[str, Any]
    num_classes: int
    channels: int
    image_size: int
    defence: Defence = "none"

    def segments(self, seed: int) -> SplitModel:
        """Build both segments with fresh weights."""
        options = {name: value for name, value in self.options.items() if name != "labels"}
        segments = split_for(
            trial_strategy(self.method, options),
            self.model,
            seed=seed,
            num_classes=self.num_classes,
            channels=self.channels,
            image_size=self.image_size,
            **self.model_options,
        )
        return blurred(segments) if self.defence == "blur" else segments

    def lower(self, seed: int) -> nn.Module:
        """Build a lower segment with fresh weights."""
        return self.segments(seed).lower
