"""Encoders that classify texts at their first token: BERT, RoBERTa, ELECTRA, DistilBERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from flwr_splitmix.segments.language.layers import Layers
from flwr_splitmix.segments.language.layouts.layout import Layout


class EncoderEmbedding(nn.Module):
    """Token, position and segment embeddings; all tokens belong to the first segment."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embeddings = model.base_model.embeddings

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.embeddings(input_ids=ids, position_ids=positions)
        return hidden


class RobertaEmbedding(EncoderEmbedding):
    """Embeddings whose positions begin behind the padding token's."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.first = model.config.pad_token_id + 1

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        return super().forward(ids, positions + self.first)


class ElectraEmbedding(EncoderEmbedding):
    """Embeddings that may be narrower than the hidden states, and are then projected."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.project = getattr(model.base_model, "embeddings_project", None) or nn.Identity()

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        hidden: Tensor = self.project(super().forward(ids, positions))
        return hidden


class EncoderLayers(Layers):
    """Layers that attend in both directions."""

    def inputs(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        check_no_cache(cache)
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

    def __init__(self, model: Any, pooler: nn.Module | None = None) -> None:
        super().__init__()
        self.pooler = model.bert.pooler if pooler is None else pooler
        self.dropout = model.dropout
        self.classifier = model.classifier

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden)))
        return logits


class ClassifierOfStates(nn.Module):
    """The same where the model's classifier itself reads the first token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.classifier = model.classifier

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        logits: Tensor = self.classifier(hidden)
        return logits


class RectifiedToken(nn.Module):
    """The same through DistilBERT's linear layer and rectifier."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pre_classifier = model.pre_classifier
        self.dropout = model.dropout
        self.classifier = model.classifier

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        pooled = self.dropout(self.pre_classifier(hidden[:, 0]).relu())
        logits: Tensor = self.classifier(pooled)
        return logits


def check_no_cache(cache: Any) -> None:
    """Raise ValueError if there is a cache, which an encoder does not fill."""
    if cache is not None:
        raise ValueError("an encoder keeps no cache of keys and values; pass cache=None")


def encoder_layers(model: Any) -> nn.ModuleList:
    """Return the layers of an encoder."""
    body = model.base_model
    layers: nn.ModuleList = (
        body.transformer if hasattr(body, "transformer") else body.encoder
    ).layer
    return layers


def positions_behind_padding(config: Any) -> int:
    """Return the number of positions that are left behind the padding token's."""
    return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


BERT = Layout(
    types=("bert",),
    kind="encoder",
    tasks=("classification",),
    layers=encoder_layers,
    embedding=EncoderEmbedding,
    stack=EncoderLayers,
    output=PooledToken,
    bounded=True,
    new=("classifier.", "bert.pooler."),
    lora_targets=("query", "value"),
)

ELECTRA = replace(
    BERT,
    types=("electra",),
    embedding=ElectraEmbedding,
    output=ClassifierOfStates,
    new=("classifier.",),
)

ROBERTA = replace(
    ELECTRA,
    types=("roberta", "xlm-roberta", "camembert"),
    embedding=RobertaEmbedding,
    max_length=positions_behind_padding,
)

DISTILBERT = replace(
    BERT,
    types=("distilbert",),
    output=RectifiedToken,
    new=("classifier.", "pre_classifier."),
    lora_targets=("q_lin", "v_lin"),
)
