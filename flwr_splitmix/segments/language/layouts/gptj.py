"""GPT-J: rotary positions from a table, in layers named as GPT-2's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from flwr_splitmix.segments.language.layouts.decoders import DecoderLayers, DroppedEmbedding
from flwr_splitmix.segments.language.layouts.gpt2 import GPT_NEO


def gptj_embedding(model: Any) -> nn.Module:
    """Return the embedding of a GPT-J model."""
    return DroppedEmbedding(model.transformer.wte, model.transformer.drop)


GPTJ = replace(GPT_NEO, types=("gptj",), embedding=gptj_embedding, stack=DecoderLayers)
