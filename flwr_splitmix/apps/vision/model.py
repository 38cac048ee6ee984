"""The model of a run, cut as its configuration and its strategy require."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from flwr_splitmix.apps.configuration.error import ConfigError, with_key_names
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.third_party import check_sums
from flwr_splitmix.segments import SPLITS, SplitModel
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.strategies.vision_cut import split_call

MODEL_KEYS = "model, depth, image-size, dataset"
"""The keys that decide most of the shapes of a model's weights, for messages."""


@contextmanager
def buildable(config: VisionConfig) -> Iterator[None]:
    """Say of a model that cannot be built or cut in the block which keys are wrong.

    Raises
    ------
    ConfigError
        If there is no such model or cut, or pretrained weights are not available.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        cut = f", cut-at {config.cut_at!r}" if config.cut_at else ""
        message = str(error).replace("positions 'upper'", config.strategy)  # no key: it decides
        message = with_key_names(message, ["patch-size", "image-size", "cut-at"])
        raise ConfigError(f"run-config: model is {config.model!r}{cut}: {message}") from None
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        if not config.pretrained:
            if isinstance(error, OSError):
                raise
            if "memory" in reason:
                reason = (
                    "it needs more memory than there is; a smaller image-size or a larger "
                    "patch-size needs less"
                )
            raise ConfigError(
                f"run-config: model is {config.model!r}, which cannot be built with image-size "
                f"{config.image_size} and patch-size {config.patch_size}: {reason}"
            ) from error
        raise ConfigError(
            f"run-config: pretrained weights of {config.model} could not be loaded: {reason}"
        ) from error


@lru_cache(maxsize=2)
def segments_of(config: VisionConfig) -> SplitModel:
    """Build lower and upper segment; every process of a run gets the same weights.

    Raises
    ------
    ConfigError
        If there is no such model or cut, pretrained weights are not available, there is no epsilon
        for the lower segment, a segment does not allow micro-batches, or a third party would add
        up rounded uploads.
    """
    images = images_of(config)
    options: dict[str, Any] = {"pretrained": True} if config.pretrained else {}
    with buildable(config):
        made_by, arguments = split_of(config, len(images.classes), images.train.shape[0])
        segments = SPLITS[made_by](**arguments, seed=config.seed, **options)
    if config.max_epsilon and (layer := needs_whole_batch(segments.lower)):
        raise ConfigError(
            f"run-config: max-epsilon is {config.max_epsilon}, but the lower segment of "
            f"{config.model} has {layer}, through which an image moves its whole batch, so that "
            f"there is no epsilon; use a model without {layer} before the cut"
        )
    if config.micro_batches != 1:
        for name, segment in (("lower", segments.lower), ("upper", segments.upper)):
            if layer := needs_whole_batch(segment):
                raise ConfigError(
                    f"run-config: micro-batches is {config.micro_batches!r}, but the {name} "
                    f"segment of {config.model} has {layer}, which needs a whole batch; use "
                    f"micro-batches 1 with it, or a model without {layer}"
                )
    check_sums(config, segments.lower.geometry.prefix)
    return segments


def split_of(config: VisionConfig, classes: int, channels: int) -> tuple[str, dict[str, Any]]:
    """Return the key of `SPLITS` for a run's model, and the arguments except those of weights."""
    return split_call(
        config.trial(),
        config.model,
        cut_at=config.cut_at,
        cell=config.cell,
        num_classes=classes,
        channels=channels,
        image_size=config.image_size,
        patch_size=config.patch_size,
        depth=config.depth or None,
        **embedding_option(config),
    )


def embedding_option(config: VisionConfig) -> dict[str, Any]:
    """Return {"embedding": ...} for a frozen edge whose embedding is not the model's own."""
    return {} if config.embedding == "patch" else {"embedding": config.embedding}
