"""Optimizers and learning-rate schedules from a recipe's plain values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from flwr_splitmix.experiments.cells import Recipe
from flwr_splitmix.optimizers import OptimizerFactory, adamw
from flwr_splitmix.schedule import WarmupCosine


def schedule_of(recipe: Recipe) -> WarmupCosine:
    """Return the recipe's learning-rate schedule; a round is an epoch."""
    return WarmupCosine(
        recipe.warmup_epochs, recipe.start_lr / recipe.lr, recipe.final_lr / recipe.lr
    )


def optimizer_of(recipe: Recipe, module: nn.Module) -> OptimizerFactory:
    """Return the factory of the optimizer of `module`, a segment or a whole model.

    With SGD, the classifier (parameters below a module "head") has the recipe's `head_lr`.
    """
    if recipe.optimizer == "adamw":
        return adamw(recipe.lr, recipe.weight_decay)
    head = {id(p) for name, p in module.named_parameters() if "head" in name.split(".")}

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        all_parameters = list(parameters)
        groups = [
            {"params": [p for p in all_parameters if id(p) not in head], "lr": recipe.lr},
            {
                "params": [p for p in all_parameters if id(p) in head],
                "lr": recipe.head_lr or recipe.lr,
            },
        ]
        return torch.optim.SGD(
            [group for group in groups if group["params"]],
            momentum=0.9,
            weight_decay=recipe.weight_decay,
        )

    return make
