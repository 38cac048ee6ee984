"""The model of a run, cut where the configuration and the strategy want it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import nn

from flwr_splitmix import split_vision_model
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.segments import SplitModel, split_shuffled_edge
from flwr_splitmix.strategies import SplitStrategy

if TYPE_CHECKING:
    from vision_config import VisionConfig


@lru_cache(maxsize=2)
def segments_of(config: VisionConfig) -> SplitModel:
    """Build lower and upper segment; every process of a run gets the same weights.

    Raises
    ------
    ConfigError
        If pretrained weights cannot be had, or a budget cannot be kept with such a lower segment.
    """
    images, trial = config.images(), config.trial()
    options: dict[str, Any] = {
        "num_classes": len(images.classes),
        "channels": images.train.shape[0],
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "depth": config.depth or None,
        "seed": config.seed,
    }
    if config.pretrained:
        options["pretrained"] = True
    try:
        if edge := edge_of(trial):
            return split_shuffled_edge(config.model, **edge, **options)
        segments = split_vision_model(
            config.model,
            cut_at=config.cut_at,
            cell=config.cell,
            positions=trial.mixer.positions or "lower",
            **options,
        )
    except (OSError, RuntimeError) as error:
        if not config.pretrained:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"run-config: pretrained weights of {config.model} could not be loaded: {reason}"
        ) from error
    if config.max_epsilon and _has_batch_norm(segments.lower):
        raise ConfigError(
            f"run-config: max-epsilon is {config.max_epsilon}, but the lower segment of "
            f"{config.model} has BatchNorm, through which an image moves its whole batch, so that "
            "there is no epsilon; allowed with it are models without BatchNorm before the cut"
        )
    return segments


def edge_of(strategy: SplitStrategy) -> dict[str, Any] | None:
    """Return how the strategy's frozen edges shuffle; None: it has none."""
    return getattr(strategy, "edge", None)


def _has_batch_norm(segment: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in segment.modules())
