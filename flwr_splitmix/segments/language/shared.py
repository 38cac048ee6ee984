"""Weights that the layers of every part read, such as a table of relative positions."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Rows(nn.Module):
    """An embedding that is not trained; no `nn.Embedding`, so nothing takes it for the tokens'."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, indices: Tensor) -> Tensor:  # noqa: D102
        weight: Tensor = self.get_buffer("weight")
        return functional.embedding(indices, weight)


def without_layers(encoder: nn.Module, config: Any) -> nn.Module:
    """Return an encoder of transformers that has no layers, and the other modules of `encoder`.

    Its methods make what all layers read.

    Parameters
    ----------
    encoder
        Its class takes a configuration alone; its layers are `encoder.layer`.
    config
        Configuration of the model.
    """
    none = copy.deepcopy(config)
    none.num_hidden_layers = 0
    with torch.device("meta"):
        bare: nn.Module = type(encoder)(none)
    for name, _ in bare.named_children():
        if name != "layer":
            setattr(bare, name, getattr(encoder, name))
    return bare


def frozen(module: nn.Module) -> nn.Module:
    """Return a copy of a module with the same names of weights, which are buffers: not trained.

    Weights that each part trained for itself would become different ones, and the parts no longer
    one model.
    """
    if isinstance(module, nn.Embedding):
        return Rows(module.weight.detach().clone())
    frozen_copy = copy.deepcopy(module)
    for name, weight in list(frozen_copy.named_parameters(recurse=False)):
        delattr(frozen_copy, name)
        frozen_copy.register_buffer(name, weight.detach())
    for name, child in module.named_children():
        setattr(frozen_copy, name, frozen(child))
    return frozen_copy
