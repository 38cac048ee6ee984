"""GPT-J: rotary positions from a table, in layers named as GPT-2's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch import nn

from flwr_splitmix.segments.language.layers import Layers
from flwr_splitmix.segments.language.layouts.decoders import DecoderLayers, DroppedEmbedding
from flwr_splitmix.segments.language.layouts.gpt2 import GPT_NEO


class GptjLayers(DecoderLayers):
    """Layers with rotary positions and full causal attention."""

    def __init__(self, model: Any, span: range) -> None:
        body = model.transformer
        Layers.__init__(self, (body.h[i] for i in span), span, model.config)
        # A copy, because the parts are placed on different devices.
        self.rotary_emb = copy.deepcopy(body.rotary_emb)


def gptj_embedding(model: Any) -> nn.Module:
    """Return the embedding of a GPT-J model."""
    return DroppedEmbedding(model.transformer.wte, model.transformer.drop)


GPTJ = replace(GPT_NEO, types=("gptj",), embedding=gptj_embedding, span=GptjLayers)
