"""Passes through vision models, to compare a pair of segments with the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def logits_and_gradient(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's logits, and the gradient of the images for the sum of their squares."""
    torch.manual_seed(0)
    images = images.clone().requires_grad_()
    logits: Tensor = model(images)
    (gradient,) = torch.autograd.grad(logits.square().sum(), images)
    return logits, gradient
