"""Test of a layout on a copy of the model with a few thousand weights."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.private_names import made_from
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.language.layers import positions_of
from flwr_splitmix.segments.language.layouts.layout import Layout

log = logging.getLogger("flwr.splitmix")

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "sliding_window": 3,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "qk_head_dim": 16, "v_head_dim": 8, "pooler_hidden_size": 32,
}  # fmt: skip
"""Values of the copy's configuration for keys where the model's has an integer."""

TOKENS = 9
LAYERS = 8
DROPOUT = 0.3


def agrees(model: Any, layout: Layout) -> bool:
    """Return whether a small model of this class and configuration computes the same as its parts.

    Its weights are random and large, so that a scaled embedding, capped logits or another order of
    layers shows in float64. In training mode both draw the same dropout, so that one that a part
    lacks shows, too. The answer for a model that cannot be made small is no.
    """
    try:
        config = shrunk(model.config, min(LAYERS, model.config.num_hidden_layers))
        config.pad_token_id = None
        with seeded_draws(torch.device("cpu"), 0), torch.no_grad():
            small = made_from(
                type(model), config, dtype=torch.float64, experts_implementation="eager"
            )
            for weight in small.parameters():
                weight.normal_(std=0.5)
            ids = torch.randint(config.vocab_size, (1, TOKENS))
            return all(_agrees(small.train(training), layout, ids) for training in (False, True))
    except Exception:  # whatever an unknown model raises, it does not have this layout
        log.debug("a %s was tried and failed", type(model).__name__, exc_info=True)
        return False


def _agrees(small: Any, layout: Layout, ids: Tensor) -> bool:
    with seeded_draws(torch.device("cpu"), 1):
        whole = small(input_ids=ids, use_cache=False).logits
    with seeded_draws(torch.device("cpu"), 1):
        hidden = layout.embedding(small)(ids, positions_of(ids, None, None, 0))
        layers = layout.span(small, range(small.config.num_hidden_layers))
        parts = layout.output(small)(layers.train(small.training)(hidden))
    return torch.allclose(parts, whole, rtol=1e-9, atol=1e-9)


def shrunk(config: Any, layers: int) -> Any:
    """Return the configuration of a model of the same kinds of layers with a few thousand weights.

    Parameters
    ----------
    layers
        How many of the model's layers it has, from the first on.
    """
    small = copy.deepcopy(config)
    for name, value in SMALL.items():
        computed = isinstance(getattr(type(small), name, None), property)
        if isinstance(getattr(small, name, None), int) and not computed:
            setattr(small, name, value)
    if isinstance(getattr(config, "num_kv_heads", None), int):  # Falcon's; alibi needs all heads
        grouped = config.num_kv_heads != config.num_attention_heads
        small.num_kv_heads = SMALL["num_key_value_heads" if grouped else "num_attention_heads"]
    if getattr(config, "kv_lora_rank", None) is not None:  # compressed keys belong to all heads
        small.num_key_value_heads = small.num_attention_heads
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float) and value > 0:
            setattr(small, name, DROPOUT)
    small.num_hidden_layers = layers
    if getattr(small, "layer_types", None) is not None:
        small.layer_types = list(small.layer_types)[:layers]
    if config.pad_token_id is not None:
        small.pad_token_id = min(config.pad_token_id, SMALL["vocab_size"] - 1)
    small.bos_token_id = small.eos_token_id = None
    return small
