"""The hiding of a language run's clients, made from the run configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.texts import public_set, tokenizer_of
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.making import make_hiding, sources_of


def hiding_sources(config: LanguageConfig) -> dict[str, Callable[[], Any]]:
    """Return functions that make the arguments of the constructor of the run's hiding, by name."""
    return {
        **sources_of(config.own_options()),
        "public": lambda: public_set(config),
        "vocab_size": lambda: len(tokenizer_of(config)),
        "special_ids": lambda: tokenizer_of(config).all_special_ids,
        "causal": lambda: config.task == "generation",
    }


def hiding_of(config: LanguageConfig) -> Hiding:
    """Make what a client hides its texts by.

    Raises
    ------
    DataError
        If it needs public texts or the tokenizer, and they cannot be read.
    """
    return make_hiding(config.hides_by, hiding_sources(config))
