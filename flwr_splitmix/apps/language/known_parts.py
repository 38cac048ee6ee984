"""The parts of a language run's model that a server has: its own, and those sent to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.apps.language.model import small_model, unusable
from flwr_splitmix.segments.language import LanguageParts, build_language_parts


def known_parts(
    base: LanguageParts, trained: LanguageParts, averaged: LanguageParts | None
) -> LanguageParts:
    """Return all parts as the server has them; `averaged` is None if heads and tails are not.

    A decoder's tail in `base` writes words. An averaged one for classes does not and is
    left out.
    """
    if averaged is None:
        return replace(base, trunk=trained.trunk)
    if averaged.task == base.task:
        return averaged
    return replace(base, head=averaged.head, trunk=averaged.trunk)


def base_parts(config: LanguageConfig) -> LanguageParts:
    """Build all parts as they were before training; a decoder's with its own output layer.

    They have the run's dtype: which random weights a seed draws depends on it.

    Raises
    ------
    ConfigError
        If the model cannot be built.
    """

    def built(task: Any) -> LanguageParts:
        return build_language_parts(
            small_model(config) if config.model == SMALL else config.model,
            config.cut,
            task=task,
            num_labels=config.num_labels,
            seed=config.seed,
            dtype=config.dtype,
        )

    try:
        parts = built(config.task)
        return built("generation") if parts.kind == "decoder" else parts
    except (OSError, ValueError) as error:
        raise unusable(config, error) from error
