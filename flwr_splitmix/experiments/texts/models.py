"""The tiny decoder of experiments, and the tokenizers of their models."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.tokenizers import open_tokenizer, train_tokenizer
from flwr_splitmix.experiments.scales import TINY

_VOCABULARY = 400


def tiny_decoder(vocab_size: int, *, layers: int = 3) -> LlamaConfig:
    """Return the configuration of a Llama of width 48 for up to 256 tokens."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )


def open_model_tokenizer(model: str) -> Any:
    """Open a model's tokenizer; the tiny decoder's is trained on generated public texts.

    Parameters
    ----------
    model
        `TINY`, or a source for `open_tokenizer`.

    Raises
    ------
    DataError
        Raised by `open_tokenizer`.
    """
    if model == TINY:
        return train_tokenizer(generated_public("generation"), _VOCABULARY)
    return open_tokenizer(model)
