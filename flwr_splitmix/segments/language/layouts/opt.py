"""OPT: learned positions, embeddings and outputs that may be narrower than the hidden states."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.language.layouts.gpt2 import GPT_NEO, Gpt2Layers
from flwr_splitmix.segments.language.layouts.outputs import decoder_output


class OptEmbedding(nn.Module):
    """Token embeddings, projected where they are narrower, and position embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        body = model.model.decoder
        self.embed_tokens = body.embed_tokens
        self.embed_positions = body.embed_positions
        self.project_in = body.project_in or nn.Identity()

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # noqa: D102
        # The first argument, a mask, is not read if positions are given.
        placed: Tensor = self.embed_positions(positions, position_ids=positions)
        hidden: Tensor = self.project_in(self.embed_tokens(ids)) + placed
        return hidden


class OptLayers(Gpt2Layers):
    """Layers with full causal attention, some of which training may leave out."""

    def run(  # noqa: D102
        self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]
    ) -> Tensor:
        if self.training and self.config.layerdrop > 0 and torch.rand([]) < self.config.layerdrop:
            return hidden
        return super().run(layer, index, hidden, shared)


def opt_output(model: Any) -> nn.Module:
    """Return the last norm, the projection and the output layer; some models lack the first two."""
    body = model.model.decoder
    last = [module for module in (body.final_layer_norm, body.project_out) if module is not None]
    return decoder_output(model, nn.Sequential(*last))


OPT = replace(
    GPT_NEO,
    types=("opt",),
    layers=attrgetter("model.decoder.layers"),
    embedding=OptEmbedding,
    stack=OptLayers,
    output=opt_output,
)
