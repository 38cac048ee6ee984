"""ModernBERT: an encoder with rotary positions, most of whose layers see a window."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
)

from flwr_splitmix.segments.language.layers import RotaryLayers
from flwr_splitmix.segments.language.layouts.decoders import rotations_of
from flwr_splitmix.segments.language.layouts.encoders import check_no_cache
from flwr_splitmix.segments.language.layouts.layout import Layout

MASKS: dict[str, Any] = {
    "full_attention": create_bidirectional_mask,
    "sliding_attention": create_bidirectional_sliding_window_mask,
}
"""The function that makes the mask of each kind of attention, by its name in transformers."""


class ModernBertEmbedding(nn.Module):
    """Token embeddings, their norm and dropout; the layers add positions, as rotations."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embeddings = model.model.embeddings

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.embeddings(input_ids=ids)
        return hidden


class ModernBertLayers(RotaryLayers):
    """Layers that attend in both directions, to all tokens or within a window, as configured."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        check_no_cache(cache)
        kinds = {self.config.layer_types[index] for index in self.span}
        return {
            kind: {
                "attention_mask": MASKS[kind](
                    config=self.config, inputs_embeds=hidden, attention_mask=mask
                ),
                "position_embeddings": rotations_of(self.rotary_emb, hidden, positions, kind),
            }
            for kind in kinds
        }

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(hidden, **shared[self.config.layer_types[index]])
        return out


class PooledStates(nn.Module):
    """Map from hidden states (b, T, d) to class logits (b, L), of the first token or the mean."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm = model.model.final_norm
        self.head = model.head
        self.drop = model.drop
        self.classifier = model.classifier
        self.pooling = model.config.classifier_pooling

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        states = self.norm(hidden)
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif mask is None:
            pooled = states.sum(1) / states.shape[1]
        else:
            pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        logits: Tensor = self.classifier(self.drop(self.head(pooled)))
        return logits


MODERNBERT = Layout(
    types=("modernbert",),
    kind="encoder",
    tasks=("classification",),
    layers=attrgetter("model.layers"),
    embedding=ModernBertEmbedding,
    stack=ModernBertLayers,
    output=PooledStates,
    bounded=False,
    new=("classifier.", "head."),
    lora_targets=("Wqkv",),
)
