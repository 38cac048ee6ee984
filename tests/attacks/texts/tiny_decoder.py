"""A small decoder with random weights, and texts of random words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig

from flwr_splitmix.attacks.texts.view import TextKnowledge, TextRelease, TextView
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts

WORDS, BEGIN, LENGTH = 300, 1, 16


def tiny_parts(head: int) -> LanguageParts:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    parts = build_language_parts(config, LanguageCut(head, 1), seed=0)
    for part in parts.all_here():
        part.eval().requires_grad_(False)
    return parts


def texts(count: int, seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    # Words of falling frequency, as language's.
    often = 1 / torch.arange(1.0, WORDS - 2)
    drawn = torch.multinomial(often.expand(count, -1), LENGTH - 1, True, generator=rng) + 3
    return [torch.cat([torch.tensor([BEGIN]), row]) for row in drawn]


def view_of(parts: LanguageParts, releases: list[TextRelease], method: str = "none") -> TextView:
    return TextView("server", releases, TextKnowledge(method, {}, parts, begin=BEGIN))


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)
