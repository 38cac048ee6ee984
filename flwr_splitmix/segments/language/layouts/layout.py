"""The layout of a family of models: where its embeddings, layers and outputs are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from torch import nn

from flwr_splitmix.segments.language.layers import Layers

ModelKind = Literal["decoder", "encoder"]
Task = Literal["generation", "classification"]


@dataclass(frozen=True)
class Layout:
    """One family of transformers models; it can be pickled, as the parts that hold it must be.

    Attributes
    ----------
    types
        Model types of the family (`config.model_type`).
    kind, tasks
        Kind of the family's models, and the tasks for which they can be cut.
    layers
        Returns a model's layers, in order.
    embedding
        Makes the module (ids (b, T), positions (1 or b, T)) -> hidden (b, T, d) of a model.
    stack
        The class of a model's consecutive layers.
    output
        Makes the module (hidden (b, T, d), mask) -> logits of a model.
    bounded
        Whether positions beyond the configuration's maximum do not exist, as where they are
        learned.
    new
        Prefixes of the names of weights that a checkpoint of another task may lack.
    lora_targets
        Names of the linear layers that LoRA adapts by default.
    transposed
        Whether these layers store their weights as (in, out).
    max_length
        Returns the most tokens of a text by a model's configuration.
    half
        Whether transformers computes these models in bfloat16 and float16, too.
    """

    types: tuple[str, ...]
    kind: ModelKind
    tasks: tuple[Task, ...]
    layers: Callable[[Any], nn.ModuleList]
    embedding: Callable[[Any], nn.Module]
    stack: Callable[[Any, nn.ModuleList, range], Layers]
    output: Callable[[Any], nn.Module]
    bounded: bool
    new: tuple[str, ...]
    lora_targets: tuple[str, ...]
    transposed: bool = False
    max_length: Callable[[Any], int] = attrgetter("max_position_embeddings")
    half: bool = True

    def span(self, model: Any, which: range) -> Layers:
        """Return the module of a range of a model's layers."""
        return self.stack(model, self.layers(model), which)
