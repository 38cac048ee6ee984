"""BERT: an encoder that classifies texts at their first token."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from flwr_splitmix.segments.language.layers import Layers
from flwr_splitmix.segments.language.layout import Layout


class BertEmbedding(nn.Module):
    """Token, position and segment embeddings; all tokens belong to the first segment."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embeddings = model.bert.embeddings

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.embeddings(input_ids=ids, position_ids=positions)
        return hidden


class BertLayers(Layers):
    """Layers that attend in both directions."""

    def __init__(self, model: Any, span: range) -> None:
        super().__init__((model.bert.encoder.layer[i] for i in span), span, model.config)

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        if cache is not None:
            raise ValueError("an encoder keeps no cache of keys and values; pass cache=None")
        both = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden, attention_mask=mask
        )
        return {"mask": both}

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        out: Tensor = layer(hidden, shared["mask"])
        return out


class PooledToken(nn.Module):
    """Map from hidden states (b, T, d) to class logits (b, L), read at the first token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pooler = model.bert.pooler
        self.dropout = model.dropout
        self.classifier = model.classifier

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden)))
        return logits


BERT = Layout(
    types=("bert",),
    kind="encoder",
    tasks=("classification",),
    layers=attrgetter("bert.encoder.layer"),
    embedding=BertEmbedding,
    span=BertLayers,
    output=PooledToken,
    learned_positions=True,
    new=("classifier.", "bert.pooler."),
    lora_targets=("query", "value"),
)
