"""GPT-2, GPT-BigCode (StarCoder) and GPT-Neo: learned positions, layers without rotations."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from flwr_splitmix.segments.language.layers import Layers, with_cache
from flwr_splitmix.segments.language.layouts.layout import Layout
from flwr_splitmix.segments.language.layouts.outputs import decoder_output


class PositionedEmbedding(nn.Module):
    """Token and position embeddings, and their dropout."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.wte = model.transformer.wte
        self.wpe = model.transformer.wpe
        self.drop = model.transformer.drop

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.drop(self.wte(ids) + self.wpe(positions))
        return hidden


class Gpt2Layers(Layers):
    """Layers that get the mask of full causal attention; GPT-Neo's narrow it by themselves."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        causal = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=mask,
            layer_idx=self.span.start,
            **with_cache(create_causal_mask, cache),
        )
        return {"mask": causal, "positions": positions, "cache": cache}

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out = layer(
            hidden,
            attention_mask=shared["mask"],
            use_cache=shared["cache"] is not None,
            position_ids=shared["positions"],
            **with_cache(type(layer).forward, shared["cache"]),
        )
        states: Tensor = out[0] if isinstance(out, tuple) else out
        return states


def gpt2_output(model: Any) -> nn.Module:
    """Return the last norm and output layer."""
    return decoder_output(model, model.transformer.ln_f)


GPT2 = Layout(
    types=("gpt2",),
    kind="decoder",
    tasks=("generation", "classification"),
    layers=attrgetter("transformer.h"),
    embedding=PositionedEmbedding,
    stack=Gpt2Layers,
    output=gpt2_output,
    bounded=True,
    new=("score.",),
    lora_targets=("c_attn",),
    transposed=True,
)

GPT_BIGCODE = replace(GPT2, types=("gpt_bigcode",), transposed=False)

GPT_NEO = replace(GPT2, types=("gpt_neo",), lora_targets=("q_proj", "v_proj"), transposed=False)
