"""MPNet: attention with a learned bias for each distance.

All layers read one table of these biases, so each part has a copy, which is not trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.segments.language.layouts.encoders import (
    ELECTRA,
    EncoderEmbedding,
    EncoderLayers,
)
from flwr_splitmix.segments.language.shared import without_layers

FIRST = 2
"""Index of the first position's embedding; those before are the padding's, whatever its token."""


class MpnetEmbedding(EncoderEmbedding):
    """Token and position embeddings."""

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        return super().forward(ids, positions + FIRST)


class MpnetLayers(EncoderLayers):
    """Layers that get the biases of all pairs of tokens."""

    def __init__(self, model: Any, layers: nn.ModuleList, span: range) -> None:
        tables = without_layers(model.mpnet.encoder, model.config) if span else None
        super().__init__(model, layers, span, tables=tables)

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        shared = super().inputs(hidden, mask, positions, cache)
        return {**shared, "bias": self.tables.compute_position_bias(hidden)}

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        states: Tensor = layer(hidden, shared["mask"], shared["bias"])[0]
        return states


def max_length(config: Any) -> int:
    """Return the number of positions that a text can have."""
    return int(config.max_position_embeddings) - FIRST


MPNET = replace(
    ELECTRA,
    types=("mpnet",),
    embedding=MpnetEmbedding,
    stack=MpnetLayers,
    lora_targets=("q", "v"),
    max_length=max_length,
)
