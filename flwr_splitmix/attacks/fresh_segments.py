"""Segments with fresh weights, of the architecture of a system under attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from flwr_splitmix.attacks.defences import Defence, blurred
from flwr_splitmix.cutting import split_for
from flwr_splitmix.segments.vision.split_model import SplitModel
from flwr_splitmix.trial import trial_strategy


def cut(
    seed: int,
    *,
    method: str,
    options: Mapping[str, Any],
    model: str,
    model_options: Mapping[str, Any],
    defence: Defence = "none",
    **sizes: Any,
) -> SplitModel:
    """Build a model with fresh weights, cut as a method and a defence need it."""
    own = {name: value for name, value in options.items() if name != "labels"}
    trial = trial_strategy(method, own)
    made = split_for(trial, model, seed=seed, **sizes, **model_options)
    return blurred(made) if defence == "blur" else made


def fresh_lower(seed: int, architecture: Mapping[str, Any]) -> nn.Module:
    """Build a lower segment with fresh weights."""
    return cut(seed, **architecture).lower
