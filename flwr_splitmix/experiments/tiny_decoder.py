"""The decoder that is made on the fly: what shows, without any file, that cells of texts run."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.rows import TextTask
from flwr_splitmix.data.texts.tokens import train_tokenizer

_VOCABULARY = 400
_LAYERS = 3


def tiny_tokenizer(task: TextTask) -> Any:
    """Train a tokenizer of at most 400 tokens on the made-up public texts of a task."""
    return train_tokenizer(generated_public(task), _VOCABULARY)


def tiny_decoder(vocab_size: int, *, deeper: int = 0) -> LlamaConfig:
    """Return the configuration of a decoder of width 48: `build_language_parts` makes it.

    Parameters
    ----------
    vocab_size
        Of its tokenizer.
    deeper
        Layers besides its three.
    """
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=_LAYERS + deeper,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
