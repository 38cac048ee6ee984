"""DeBERTa, versions 1 to 3: attention that also reads embeddings of distances.

All layers read one table of these embeddings, so each part has a copy, which is not trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.language.layouts.encoders import (
    BERT,
    EncoderLayers,
    PooledToken,
    check_no_cache,
)
from flwr_splitmix.segments.language.shared import without_layers


class DebertaLayers(EncoderLayers):
    """Layers that get the embeddings of distances; behind the model's first a convolution."""

    def __init__(self, model: Any, layers: nn.ModuleList, span: range) -> None:
        encoder = model.deberta.encoder
        tables: Any = without_layers(encoder, model.config) if span else None
        super().__init__(model, layers, span, tables=tables)
        # The convolution belongs to one layer, and so is trained with it.
        self.conv = getattr(encoder, "conv", None) if 0 in span else None
        if tables is not None:
            tables.conv = None

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        check_no_cache(cache)
        if mask is None:
            mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
        mask = mask.to(hidden.device).long()
        return {
            "tokens": mask,
            "layer": {
                "attention_mask": self.tables.get_attention_mask(mask),
                "relative_pos": self.tables.get_rel_pos(hidden),
                "rel_embeddings": self.tables.get_rel_embedding(),
            },
        }

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        if index > 0:
            states: Tensor = layer(hidden, **shared["layer"])[0]
            return states
        # The model's embeddings of padding are zero, which its convolution sees.
        hidden = hidden * shared["tokens"].unsqueeze(-1).to(hidden.dtype)
        states = layer(hidden, **shared["layer"])[0]
        return states if self.conv is None else self.conv(hidden, states, shared["tokens"])


def deberta_output(model: Any) -> nn.Module:
    """Return the pooler of the first token, the dropout and the classifier."""
    return PooledToken(model, model.pooler)


DEBERTA_V2 = replace(
    BERT,
    types=("deberta-v2",),
    stack=DebertaLayers,
    output=deberta_output,
    new=("classifier.", "pooler."),
    lora_targets=("query_proj", "value_proj"),
)

# The biases of its queries and values are in float32, whatever the model's type.
DEBERTA = replace(DEBERTA_V2, types=("deberta",), lora_targets=("in_proj",), half=False)
