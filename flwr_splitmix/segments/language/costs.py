"""Costs of a language model's parts, layer by layer, counted without its weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.costs import StageCosts, measure_stages
from flwr_splitmix.segments.language.layers import positions_of
from flwr_splitmix.segments.language.layouts.families import layout_of


class _Embedding(nn.Module):
    """Map from token ids (b, T) to hidden states (b, T, d), at the positions without a cache."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(ids, positions_of(ids, None, None, 0))
        return hidden


class _Output(nn.Module):
    """Map from hidden states (b, T, d) of texts without padding to logits."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.output = output

    def forward(self, hidden: Tensor) -> Tensor:
        mask = torch.ones(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        logits: Tensor = self.output(hidden, mask)
        return logits


def layer_costs(model: Any, tokens: int, *, adapted: bool = False) -> list[StageCosts]:
    """Return the costs of the embedding, each layer and the output, per text.

    Parameters
    ----------
    model
        A model from `open_skeleton`.
    tokens
        Length of a text in tokens.
    adapted
        Whether the weights are frozen and adapters learn, whose own costs are neglected.
    """
    if adapted:
        model = copy.deepcopy(model).requires_grad_(False)
    layout = layout_of(model)
    layers = len(layout.layers(model))
    stages = [
        _Embedding(layout.embedding(model)),
        *(layout.span(model, range(i, i + 1)) for i in range(layers)),
        _Output(layout.output(model)),
    ]
    ids = torch.zeros(2, tokens, dtype=torch.int64, device="meta")
    return measure_stages(stages, ids, adapted=adapted)
