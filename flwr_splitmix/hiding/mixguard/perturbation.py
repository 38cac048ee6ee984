"""Noise on the gradient that leaves the client, in proportion to the calibration residual."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from flwr_splitmix.seeding import secret_normal

Perturbation = Literal["adaptive", "constant"]


def perturb(
    gradient: Tensor,
    residual: Tensor,
    decoded: Tensor,
    *,
    strength: float = 0.1,
    kind: Perturbation | None = "adaptive",
) -> Tensor:
    """Add Gaussian noise to a decoded target's gradient before it is spread over the messages.

    It does not hide the secret: the messages' gradients stay collinear, at every strength
    (`flwr_splitmix.attacks.texts.gradient_ratio`).

    Parameters
    ----------
    gradient
        `g` (b, T, d), of the loss with respect to `h^`.
    residual
        `C(h^) - h^` (b, T, d).
    decoded
        `h^` (b, T, d).
    strength
        "adaptive": each sample's noise has the standard deviation
        `strength * RMS(residual) / RMS(h^) * RMS(g)`; "constant": `strength * RMS(g)`.
    kind
        None returns the gradient unchanged.

    Returns
    -------
    (b, T, d), of the gradient's dtype and device, detached.

    Raises
    ------
    ValueError
        If the kind is unknown, strength is negative or not finite, shapes differ, or a sample's
        `h^` is all zero, so that a residual has no scale.

    Source: MixGuard, equations 28 and 29; the scale is ours, as the paper's is unknown.
    """
    if kind is not None and kind not in get_args(Perturbation):
        allowed = ", ".join(get_args(Perturbation))
        raise ValueError(f"perturbation is {kind!r}; it must be one of {allowed}, or None")
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength is {strength}; it must be at least 0 and finite")
    if not gradient.shape == residual.shape == decoded.shape:
        raise ValueError(
            f"gradient, residual and decoded have shapes {tuple(gradient.shape)}, "
            f"{tuple(residual.shape)} and {tuple(decoded.shape)}; they must be the same"
        )
    gradient = gradient.detach()
    if kind is None:
        return gradient
    sigma = strength * _rms(gradient)
    if kind == "adaptive":
        size = _rms(decoded)
        if not bool(size.all()):
            raise ValueError("a sample's decoded target is all zero; its residual has no scale")
        sigma = sigma * _rms(residual) / size
    noise = secret_normal(gradient.shape, sigma.dtype).to(gradient.device)
    return (gradient.to(sigma.dtype) + sigma * noise).to(gradient.dtype)


def _rms(tensor: Tensor) -> Tensor:
    """Return each sample's root mean square: (b, 1, ...), float32 or better."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    return wide.square().mean(dim=tuple(range(1, tensor.ndim)), keepdim=True).sqrt()
