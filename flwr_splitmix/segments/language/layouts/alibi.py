"""BLOOM and MPT: no positions in the embeddings; attention that falls with distance (ALiBi)."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from flwr_splitmix.segments.language.layers import with_cache
from flwr_splitmix.segments.language.layouts.gpt2 import GPT2, Gpt2Layers, gpt2_output
from flwr_splitmix.segments.language.layouts.outputs import decoder_output

BLOOM_LENGTH = 2048
"""Tokens of a text with which BLOOM was trained; its configuration states no maximum."""


class BloomEmbedding(nn.Module):
    """Token embeddings and their norm."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.word_embeddings = model.transformer.word_embeddings
        self.norm = model.transformer.word_embeddings_layernorm

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.norm(self.word_embeddings(ids))
        return hidden


class BloomLayers(Gpt2Layers):
    """Layers that get a bias for each token before."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        shared = super().inputs(hidden, mask, positions, cache)
        if mask is None:
            past = 0 if cache is None else int(cache.get_seq_length(self.span.start))
            batch, length = hidden.shape[:2]
            mask = torch.ones((batch, past + length), dtype=torch.int64)
        heads = self.config.num_attention_heads
        bias = build_alibi_tensor(mask.to(hidden.device), heads, dtype=hidden.dtype)
        return {**shared, "bias": {"alibi": bias}}

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(
            hidden,
            attention_mask=shared["mask"],
            use_cache=shared["cache"] is not None,
            **shared["bias"],
            **with_cache(type(layer).forward, shared["cache"]),
        )[0]
        return out


class MptEmbedding(nn.Module):
    """Token embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.wte = model.transformer.wte

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.wte(ids)
        return hidden


class MptLayers(BloomLayers):
    """The same; the bias reaches as far as the configuration's longest text."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        shared = Gpt2Layers.inputs(self, hidden, mask, positions, cache)
        bias = build_mpt_alibi_tensor(  # type: ignore[no-untyped-call]
            self.config.num_attention_heads, self.config.max_seq_len, device=hidden.device
        )
        # True where a token is hidden: the layers read the mask so.
        return {**shared, "mask": shared["mask"].bool(), "bias": {"position_bias": bias}}


def mpt_output(model: Any) -> nn.Module:
    """Return the last norm and output layer of an MPT model."""
    return decoder_output(model, model.transformer.norm_f)


def bloom_length(config: Any) -> int:
    """Return the length in tokens with which a BLOOM model was trained."""
    return int(getattr(config, "seq_length", None) or BLOOM_LENGTH)


BLOOM = replace(
    GPT2,
    types=("bloom",),
    embedding=BloomEmbedding,
    stack=BloomLayers,
    output=gpt2_output,
    bounded=False,
    lora_targets=("query_key_value",),
    transposed=False,
    max_length=bloom_length,
)

MPT = replace(
    BLOOM,
    types=("mpt",),
    layers=attrgetter("transformer.blocks"),
    embedding=MptEmbedding,
    stack=MptLayers,
    output=mpt_output,
    bounded=True,
    lora_targets=("Wqkv",),
    max_length=attrgetter("max_seq_len"),
)
