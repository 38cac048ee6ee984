"""Consecutive layers of one model, run as the whole model runs them."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.language.shared import frozen


class Layers(nn.Module):
    """Layers `span` of a model; an empty span returns its input.

    A subclass defines in `inputs` the arguments that all layers share, and in `run` the call of
    one layer.

    Parameters
    ----------
    layers
        All layers of the model.
    tables
        Module whose weights the layers of all parts read, if there is one. It is the model's until
        `freeze_tables`.
    """

    def __init__(
        self,
        model: Any,
        layers: nn.ModuleList,
        span: range,
        *,
        tables: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers[i] for i in span)
        self.span = span
        self.config = model.config
        self.tables: Any = tables

    def freeze_tables(self) -> None:
        """Give these layers a copy of `tables` of their own, which is not trained."""
        if self.tables is not None:
            self.tables = frozen(self.tables).train(self.tables.training)

    @abstractmethod
    def inputs(
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor, cache: Any
    ) -> dict[str, Any]:
        """Return the layers' inputs besides hidden states, such as attention masks and rotations.

        They are passed to `run` as `shared`.
        """

    @abstractmethod
    def run(self, layer: nn.Module, index: int, hidden: Tensor, shared: dict[str, Any]) -> Tensor:
        """Call a layer; `index` is its index in the whole model."""

    def forward(  # noqa: D102
        self, hidden: Tensor, mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if not self.span:
            return hidden
        positions = positions_of(hidden, mask, cache, self.span.start)
        shared = self.inputs(hidden, mask, positions, cache)
        for index, layer in zip(self.span, self.layers, strict=True):
            hidden = self.run(layer, index, hidden, shared)
        return hidden


class RotaryLayers(Layers):
    """Layers that get rotations, which a copy of the model's module computes.

    It is a copy because the parts are placed on different devices.
    """

    def __init__(self, model: Any, layers: nn.ModuleList, span: range) -> None:
        super().__init__(model, layers, span)
        self.rotary_emb = copy.deepcopy(model.base_model.rotary_emb)


def with_cache(function: Callable[..., Any], cache: Any) -> dict[str, Any]:
    """Return a cache as an argument of one of transformers' functions.

    Newer versions call it "cache"; 5.40 drops the old name "past_key_values". Layers of GPT-Neo
    and GPT-NeoX call it "layer_past".
    """
    return {_cache_argument(function): cache}


@lru_cache
def _cache_argument(function: Callable[..., Any]) -> str:
    names = inspect.signature(function).parameters
    return next((name for name in ("cache", "layer_past") if name in names), "past_key_values")


def positions_of(tokens: Tensor, mask: Tensor | None, cache: Any, layer: int) -> Tensor:
    """Return the positions of tokens, or of their hidden states, within their texts.

    Parameters
    ----------
    tokens
        The new tokens, (b, T, ...).
    mask
        0/1, (b, past + T), or None for no padding.
    cache
        None: positions are 0 to T - 1, whatever the padding. Else a text's positions continue
        those in the cache, and padding, on either side, is not counted.
    layer
        Index of the first layer that will see the tokens; the cache does not hold them there yet.

    Returns
    -------
    int64 (1 or b, T).

    Raises
    ------
    ValueError
        If the mask does not cover the past and the new tokens.
    """
    batch, length = tokens.shape[:2]
    past = 0 if cache is None else int(cache.get_seq_length(layer))
    if mask is not None and tuple(mask.shape) != (batch, past + length):
        raise ValueError(
            f"the mask has shape {tuple(mask.shape)}; {past} cached and {length} new tokens of "
            f"{batch} texts need {(batch, past + length)}"
        )
    if cache is None or mask is None:
        return torch.arange(past, past + length, device=tokens.device)[None]
    counted = mask.to(tokens.device).long().cumsum(1) - 1
    return counted.clamp(min=0)[:, past:]
