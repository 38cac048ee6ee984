"""Decoders with rotary positions: Llama and those laid out like it, GPT-NeoX, Phi."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from flwr_splitmix.segments.language.layers import RotaryLayers, with_cache
from flwr_splitmix.segments.language.layouts.layout import Layout
from flwr_splitmix.segments.language.layouts.outputs import ScaledNextToken, decoder_output

MASKS: dict[str, Any] = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
}
"""The function that makes the mask of each kind of attention, by its name in transformers."""


class TokenEmbedding(nn.Module):
    """Token embeddings; the layers add positions, as rotations."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed_tokens = model.model.embed_tokens

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.embed_tokens(ids)
        return hidden


class DecoderLayers(RotaryLayers):
    """Layers with rotary positions, and full or sliding causal attention as configured."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        kinds = {index: attention_kind(self.config, index) for index in self.span}
        # A cache's length is read at a layer of this part: earlier layers hold the new tokens.
        one_each = {kind: index for index, kind in kinds.items()}
        masks = {
            kind: MASKS[kind](
                config=self.config,
                inputs_embeds=hidden,
                attention_mask=mask,
                layer_idx=index,
                **with_cache(MASKS[kind], cache),
            )
            for kind, index in one_each.items()
        }
        rotations = {
            kind: rotations_of(self.rotary_emb, hidden, positions, kind) for kind in one_each
        }
        return {
            "masks": {index: masks[kind] for index, kind in kinds.items()},
            "rotations": {index: rotations[kind] for index, kind in kinds.items()},
            "position_ids": positions,
            "cache": cache,
        }

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(
            hidden,
            attention_mask=shared["masks"][index],
            position_embeddings=shared["rotations"][index],
            position_ids=shared["position_ids"],
            use_cache=shared["cache"] is not None,
            **with_cache(type(layer).forward, shared["cache"]),
        )
        return out


def rotations_of(
    rotary: nn.Module, hidden: Tensor, positions: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Return the rotations of a kind of attention; some models have one for all kinds."""
    arguments = {"layer_type": kind} if _by_kind(type(rotary).forward) else {}
    rotations: tuple[Tensor, Tensor] = rotary(hidden, position_ids=positions, **arguments)
    return rotations


@lru_cache
def _by_kind(forward: Callable[..., Any]) -> bool:
    return "layer_type" in inspect.signature(forward).parameters


def attention_kind(config: Any, index: int) -> str:
    """Return a layer's kind of attention, a key of `MASKS`.

    A window counts only if the configuration's class declares one: Llama and others keep a stray
    `sliding_window`, and their models ignore it.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return str(kinds[index])
    declared = hasattr(type(config), "sliding_window")
    return (
        "sliding_attention" if declared and config.sliding_window is not None else "full_attention"
    )


def llama_output(model: Any) -> nn.Module:
    """Return the last norm and output layer."""
    return decoder_output(model, model.model.norm)


class ScaledEmbedding(TokenEmbedding):
    """Token embeddings that the model scales (Granite)."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.multiplier = getattr(model.config, "embedding_multiplier", 1.0)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        return super().forward(ids, positions) * self.multiplier


class DroppedEmbedding(nn.Module):
    """Token embeddings and their dropout."""

    def __init__(self, tokens: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.tokens = tokens
        self.dropout = dropout

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.dropout(self.tokens(ids))
        return hidden


def neox_embedding(model: Any) -> nn.Module:
    """Return the embedding of a GPT-NeoX model."""
    return DroppedEmbedding(model.gpt_neox.embed_in, model.gpt_neox.emb_dropout)


def neox_output(model: Any) -> nn.Module:
    """Return the last norm and output layer of a GPT-NeoX model."""
    return decoder_output(model, model.gpt_neox.final_layer_norm)


def phi_embedding(model: Any) -> nn.Module:
    """Return the embedding of a Phi model."""
    return DroppedEmbedding(model.model.embed_tokens, model.model.embed_dropout)


def phi_output(model: Any) -> nn.Module:
    """Return the last norm and output layer of a Phi model."""
    return decoder_output(model, model.model.final_layernorm)


def scaled_output(model: Any) -> nn.Module:
    """Return the last norm and output layer, with what the model does to its logits."""
    config, norm = model.config, model.model.norm
    if hasattr(model, "score"):  # no model scales the logits of classes
        return decoder_output(model, norm)
    return ScaledNextToken(
        norm,
        model.get_output_embeddings(),
        times=getattr(config, "logit_scale", None),
        divided=getattr(config, "logits_scaling", None),
        cap=getattr(config, "final_logit_softcapping", None),
    )


LLAMA = Layout(
    types=("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"),
    kind="decoder",
    tasks=("generation", "classification"),
    layers=attrgetter("base_model.layers"),
    embedding=TokenEmbedding,
    stack=DecoderLayers,
    output=llama_output,
    bounded=False,
    new=("score.",),
    lora_targets=("q_proj", "v_proj"),
)

SCALED = replace(LLAMA, types=(), embedding=ScaledEmbedding, output=scaled_output)
"""Like Llama, with scaled embeddings or with scaled or capped logits: Granite, Cohere, Gemma 2."""

NEOX = replace(
    LLAMA,
    types=("gpt_neox",),
    embedding=neox_embedding,
    output=neox_output,
    lora_targets=("query_key_value",),
)

PHI = replace(LLAMA, types=("phi",), embedding=phi_embedding, output=phi_output)


def looks_like_llama(model: Any) -> bool:
    """Return whether a model's modules are named like Llama's, with known kinds of attention."""
    body = getattr(model, "model", None)
    names = ("embed_tokens", "layers", "norm", "rotary_emb")
    kinds = getattr(model.config, "layer_types", None) or ()
    return all(isinstance(getattr(body, name, None), nn.Module) for name in names) and all(
        kind in MASKS for kind in kinds
    )
