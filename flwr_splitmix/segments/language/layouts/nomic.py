"""NomicBERT: an encoder with rotary positions."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.segments.language.layers import RotaryLayers
from flwr_splitmix.segments.language.layouts.encoders import BERT, EncoderLayers, PooledToken


class NomicLayers(RotaryLayers, EncoderLayers):
    """Layers that attend in both directions."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        return {
            "attention_mask": super().inputs(hidden, mask, positions, cache)["mask"],
            "position_embeddings": self.rotary_emb(hidden, positions),
            "position_ids": positions,
        }

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(hidden, **shared)
        return out


def nomic_output(model: Any) -> nn.Module:
    """Return the pooler of the first token, the dropout and the classifier."""
    return PooledToken(model, model.nomic_bert.pooler)


NOMIC_BERT = replace(
    BERT,
    types=("nomic_bert",),
    layers=attrgetter("nomic_bert.layers"),
    stack=NomicLayers,
    output=nomic_output,
    bounded=False,
    new=("classifier.", "nomic_bert.pooler."),
    lora_targets=("q_proj", "v_proj"),
)
