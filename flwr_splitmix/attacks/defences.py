"""Defences that Patch Shuffling compares with: rows of the matrix, not methods of the catalogue."""

from __future__ import annotations

import copy
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.images.decoder import ConvDecoder
from flwr_splitmix.segments.vision.split_model import LowerSegment, SplitModel

Defence = Literal["none", "blur", "adversarial"]

MIN_BLUR_FACTOR = 4
"""Least factor by which the resolution is reduced: from 32 to 8 pixels."""

BLURRED_SIDE = 16
"""Most pixels per side that are kept: a fourteenth of 224, as in the paper."""


def blur(images: Tensor, side: int) -> Tensor:
    """Return images (b, C, H, W) at a resolution of `side` x `side`, enlarged again.

    Source: Patch Shuffling, section V-A, after Ryoo et al., "Privacy-preserving human activity
    recognition from extreme low resolution".

    Raises
    ------
    ValueError
        If `side` is below 1 or above the images' own.
    """
    height, width = images.shape[2:]
    if not 1 <= side <= min(height, width):
        raise ValueError(f"images of {height} x {width} cannot be blurred to {side} x {side}")
    small = F.interpolate(images, size=(side, side), mode="area")
    return F.interpolate(small, size=(height, width), mode="bilinear", align_corners=False)


class BlurredLower(nn.Module):
    """A lower segment that blurs images before it embeds them.

    Parameters
    ----------
    lower
        The lower segment; its `geometry` and `input_shape` are adopted.
    side
        Pixels per side after blurring.
    """

    def __init__(self, lower: nn.Module, side: int) -> None:
        super().__init__()
        self.lower = lower
        self.side = side
        self.geometry = getattr(lower, "geometry", None)
        self.input_shape = getattr(lower, "input_shape", None)

    def forward(self, images: Tensor) -> Tensor:
        """Return the smashed data of the blurred images."""
        smashed: Tensor = self.lower(blur(images, self.side))
        return smashed


class AdversarialLower(nn.Module):
    """A lower segment trained against its own simulated attacker.

    In every training step the attacker, a decoder, takes a step towards reconstructing the batch,
    and the gradient of its loss is subtracted from the one that the server returns: the segment
    minimises task loss minus attack loss.

    Parameters
    ----------
    lower
        The lower segment, images to smashed data; its `geometry` and `input_shape` are adopted.
    opponent
        Smashed data (b, N, d) to images (b, C, H, W).
    weight
        Weight of the attack loss relative to the task loss.
    lr
        Learning rate of the opponent (Adam).

    Source: Patch Shuffling, equation 9, after Xiao et al., 2020.
    """

    def __init__(
        self, lower: nn.Module, opponent: nn.Module, *, weight: float = 1.0, lr: float = 1e-3
    ) -> None:
        super().__init__()
        self.lower = lower
        self.opponent = opponent
        self.weight = weight
        self.lr = lr
        self.geometry = getattr(lower, "geometry", None)
        self.input_shape = getattr(lower, "input_shape", None)
        self._optimizer: torch.optim.Optimizer | None = None
        # The client's optimizer is the segment's: the opponent has its own.
        self.opponent.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the smashed data; in training, subtract the opponent's gradient from theirs."""
        smashed: Tensor = self.lower(images)
        if not (self.training and torch.is_grad_enabled()):
            return smashed
        pushed: Tensor = _Opposed.apply(smashed, self.weight * self._oppose(smashed, images))
        return pushed

    def _oppose(self, smashed: Tensor, images: Tensor) -> Tensor:
        """Train the opponent for one step; return its loss's gradient at the smashed data."""
        weights = list(self.opponent.parameters())
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(weights, lr=self.lr)
        self.opponent.requires_grad_(True)
        try:
            leaf = smashed.detach().requires_grad_()
            F.mse_loss(self.opponent(leaf), images).backward()  # type: ignore[no-untyped-call]
        finally:
            self.opponent.requires_grad_(False)
        self._optimizer.step()
        self._optimizer.zero_grad()
        assert leaf.grad is not None
        return leaf.grad


class _Opposed(torch.autograd.Function):
    """Identity that subtracts a given tensor from the gradient."""

    @staticmethod
    def forward(ctx: Any, smashed: Tensor, opposed: Tensor) -> Tensor:
        ctx.save_for_backward(opposed)
        return smashed.view_as(smashed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (opposed,) = ctx.saved_tensors
        return gradient - opposed, None


def blurred(model: SplitModel) -> SplitModel:
    """Return a model whose clients blur their images, to `BLURRED_SIDE` pixels or fewer."""
    side = min(model.lower.input_shape[1] // MIN_BLUR_FACTOR, BLURRED_SIDE)
    lower = BlurredLower(model.lower, side)
    return model._replace(lower=cast(LowerSegment, lower))


def opposed(lower: LowerSegment) -> AdversarialLower:
    """Return a copy of a lower segment, to be trained against the papers' decoder."""
    geometry = lower.geometry
    channels, height, width = lower.input_shape
    opponent = ConvDecoder(
        geometry.width, geometry.patches, geometry.grid, (channels, height, width)
    )
    return AdversarialLower(copy.deepcopy(lower), opponent)


def own_lower(lower: LowerSegment, defence: Defence) -> nn.Module:
    """Return a client's copy of the lower segment, with an attacker if the defence needs one."""
    return opposed(lower) if defence == "adversarial" else copy.deepcopy(lower)


def undefended(segment: nn.Module) -> nn.Module:
    """Return the lower segment without its simulated attacker, if it has one."""
    return segment.lower if isinstance(segment, AdversarialLower) else segment
