"""The parts of a run's model that a process needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.configuration.error import ConfigError, with_key_names
from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.segments.language import LanguageParts, add_lora, build_language_parts
from flwr_splitmix.segments.language.lora import has_targets

HEAD_SIZE = 16
"""Width of the small model's attention heads."""


def build_parts(
    config: LanguageConfig,
    parts: Collection[str],
    *,
    device_map: str | Mapping[str, Any] | None = None,
    source: Any = None,
) -> LanguageParts:
    """Build some parts with their adapters; every process of a run gets the same weights.

    Parameters
    ----------
    parts
        Which of "head", "trunk" and "tail" to build.
    device_map
        Placement of the trunk, as for `build_language_parts`.
    source
        What the model is made of, as for `build_language_parts`; None: the run's.

    Raises
    ------
    ConfigError
        If there is no such model, or it does not support the cut or the texts' length.
    """
    if source is None:
        source = small_model(config) if config.model == SMALL else config.model
    try:
        built = build_language_parts(
            source,
            config.cut,
            parts=parts,
            task=config.task,
            num_labels=config.num_labels,
            seed=config.seed,
            dtype=config.dtype,
            gradient_checkpointing=config.gradient_checkpointing,
            device_map=device_map,
        )
        check_adapted(config, built)
        for part in config.adapted:
            if (segment := getattr(built, part)) is not None:
                add_lora(segment, config.lora_rank, config.lora_alpha, seed=config.seed)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise unusable(config, error) from error
    check_width(config, built)
    if built.tail is not None and config.task == "classification":
        # A new classifier has random weights: adapters elsewhere are useless if it stays frozen.
        built.tail.output.requires_grad_(True)
    return built


def check_adapted(config: LanguageConfig, built: LanguageParts) -> None:
    """Raise ConfigError unless every built part that gets adapters has layers for them."""
    for part in config.adapted:
        segment = getattr(built, part)
        if segment is not None and not has_targets(segment, segment.layout.lora_targets):
            raise ConfigError(
                f"run-config: lora-rank is {config.lora_rank} and lora-parts names {part!r}, which "
                f"has no layer named {', '.join(segment.layout.lora_targets)} to adapt; leave it "
                "out of lora-parts"
            )


def check_width(config: LanguageConfig, built: LanguageParts) -> None:
    """Raise ConfigError if the run's texts may be longer than the model takes."""
    if config.width > built.max_length:
        key = "pad-to" if config.pad_to else "max-length"
        raise ConfigError(
            f"run-config: {key} is {config.width}, but {config.model!r} takes at most "
            f"{built.max_length} tokens"
        )


def check_vocabulary(config: LanguageConfig, tokenizer: Sized, built: LanguageParts) -> None:
    """Raise ConfigError if the tokenizer has tokens that the model does not know."""
    if len(tokenizer) > built.vocab_size:
        raise ConfigError(
            f"run-config: the tokenizer of {config.model!r} has {len(tokenizer)} tokens, but the "
            f"model knows {built.vocab_size}"
        )


def unusable(config: LanguageConfig, error: Exception) -> ConfigError:
    """Return a ConfigError with the reason why the run's model cannot be used."""
    reason = with_key_names(" ".join(str(error).split())[:500], ["num-labels"])
    return ConfigError(f"run-config: the model {config.model!r} cannot be used: {reason}")


def small_model(config: LanguageConfig) -> Any:
    """Return the transformers configuration of a small decoder with Qwen3's architecture.

    By default, it has some hundred thousand weights.
    """
    from transformers import Qwen3Config

    heads = max(1, config.small_width // HEAD_SIZE)
    return Qwen3Config(
        vocab_size=config.small_vocabulary,
        hidden_size=config.small_width,
        intermediate_size=3 * config.small_width,
        num_hidden_layers=config.small_layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=config.small_width // heads,
        max_position_embeddings=max(512, config.max_length),
        tie_word_embeddings=True,
    )


def initial_segments(config: LanguageConfig) -> dict[str, Tensor]:
    """Return the initial values of the parameters of head and tail that are averaged.

    If only tails learn, heads are frozen, with an embedding that both share.

    Returns
    -------
    Trainable parameters by name; bfloat16 as float32, because Flower's arrays are NumPy's.
    """
    parts = build_parts(config, ("head", "tail"))
    assert parts.head is not None
    assert parts.tail is not None
    if config.learns == "tail":
        parts.head.requires_grad_(False)
    both = nn.ModuleDict({"head": parts.head, "tail": parts.tail})
    return {
        name: p.detach().float() if p.dtype == torch.bfloat16 else p.detach()
        for name, p in both.named_parameters()
        if p.requires_grad
    }
