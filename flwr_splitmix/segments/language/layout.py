"""The layout of a family of models: the places of its embeddings, layers and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from flwr_splitmix.segments.language.layers import Layers

ModelKind = Literal["decoder", "encoder"]
Task = Literal["generation", "classification"]


@dataclass(frozen=True)
class Layout:
    """One family of transformers models; its members can be pickled, as the parts have it.

    Attributes
    ----------
    types
        Its model types (`config.model_type`).
    kind, tasks
        What the models of the family are, and what they can be cut for.
    layers
        The model's layers, in order.
    embedding
        Makes of a model the module (ids (b, T), positions (1 or b, T)) -> hidden (b, T, d).
    span
        Makes of a model and a range the module of these layers.
    output
        Makes of a model the module (hidden (b, T, d), mask) -> logits.
    learned_positions
        Whether positions beyond the configuration's maximum have no embedding.
    new
        Beginnings of the names of weights that a checkpoint of another task may lack.
    lora_targets
        Names of the linear layers that LoRA adapts unless told otherwise.
    transposed
        Whether these keep their weights as (in, out).
    """

    types: tuple[str, ...]
    kind: ModelKind
    tasks: tuple[Task, ...]
    layers: Callable[[Any], nn.ModuleList]
    embedding: Callable[[Any], nn.Module]
    span: Callable[[Any, range], Layers]
    output: Callable[[Any], nn.Module]
    learned_positions: bool
    new: tuple[str, ...]
    lora_targets: tuple[str, ...]
    transposed: bool = False
