"""Whether the layers of a model can be computed at all: heads that do not fit each other."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch

from flwr_splitmix.segments.language.parts import LanguageParts
from flwr_splitmix.segments.shape_errors import of_shapes
from flwr_splitmix.words import cause

log = logging.getLogger("flwr.splitmix")

KEYS = (
    "hidden_size", "n_embd", "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
    "rotary_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank",
)  # fmt: skip
"""Keys of a configuration that set the shapes in its attention."""

TOKENS = 2


def check_heads(built: LanguageParts) -> None:
    """Refuse parts whose layers cannot be computed; those given are on the meta device.

    transformers makes a model of any number of heads, even of key-value heads that do not divide
    them, which a configuration may have by default. A copy of some layers computes shapes alone,
    without memory for weights; what fails otherwise than by a shape is no reason.

    Raises
    ------
    ValueError
        If shapes within a layer do not fit; the message has the configuration's keys that set them.
    """
    parts = (part for part in (built.head, built.trunk, built.tail) if part is not None)
    stack = next((part.stack for part in parts if part.stack.span), None)
    if stack is None:
        return
    tried: Any = copy.deepcopy(stack).eval()
    dtype = next(weight.dtype for weight in tried.parameters())
    try:
        with torch.no_grad():
            tried(torch.empty(1, TOKENS, built.width, dtype=dtype, device="meta"))
    except Exception as error:
        shapes = of_shapes(error) or "reduction dim" in str(error)  # of a product without memory
        if shapes and isinstance(error, RuntimeError):
            raise ValueError(_cannot_compute(built.config, error)) from error
        log.debug("layers were not tried without memory", exc_info=True)


def _cannot_compute(config: Any, error: Exception) -> str:
    options = config.to_dict()
    description = ", ".join(
        f"{key} is {options[key]}" for key in KEYS if options.get(key) is not None
    )
    heads, pairs = options.get("num_attention_heads"), options.get("num_key_value_heads")
    remedy = ""
    if isinstance(heads, int) and isinstance(pairs, int) and (pairs < 1 or heads % pairs):
        remedy = "; num_key_value_heads must divide num_attention_heads, even where it is a default"
    return (
        f"the layers of a model of type {config.model_type!r} cannot be computed with this "
        f"configuration: {description}{remedy} ({cause(error)})"
    )
