"""Falcon: rotary positions, or attention that falls with distance (ALiBi), as configured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from flwr_splitmix.segments.language.layers import RotaryLayers, with_cache
from flwr_splitmix.segments.language.layouts.gpt2 import GPT_NEO


class FalconEmbedding(nn.Module):
    """Token embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.word_embeddings = model.transformer.word_embeddings

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.word_embeddings(ids)
        return hidden


class FalconLayers(RotaryLayers):
    """Layers with full causal attention."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        causal = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=mask,
            layer_idx=self.span.start,
            allow_is_causal_skip=False,
            **with_cache(create_causal_mask, cache),
        )
        bias = None
        if self.config.alibi:
            bias = self._bias(hidden, mask, cache)
            # The bias is the mask of the attention that adds nothing else; eager attention adds it.
            visible = causal if causal.dtype == torch.bool else causal >= -1
            scale = math.sqrt(self.config.hidden_size // self.config.num_attention_heads)
            causal = (bias / scale).masked_fill(~visible, torch.finfo(hidden.dtype).min)
        return {
            "attention_mask": causal,
            "alibi": bias,
            "position_embeddings": self.rotary_emb(hidden, position_ids=positions),
            "position_ids": positions,
            "use_cache": cache is not None,
            "layer_past": cache,
        }

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(hidden, **shared)[0]
        return out

    def _bias(self, hidden: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """Return the bias of each token before, (b, heads, 1, past + T)."""
        batch, length = hidden.shape[:2]
        if mask is None:
            past = 0 if cache is None else int(cache.get_seq_length(self.span.start))
            mask = torch.ones((batch, past + length), dtype=torch.int64)
        heads = self.config.num_attention_heads
        bias: Tensor = build_alibi_tensor(mask.to(hidden.device), heads, dtype=hidden.dtype)
        return bias.reshape(batch, heads, 1, -1)


FALCON = replace(
    GPT_NEO,
    types=("falcon",),
    embedding=FalconEmbedding,
    stack=FalconLayers,
    bounded=False,
    lora_targets=("query_key_value",),
)
