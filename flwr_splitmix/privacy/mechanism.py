"""The Gaussian mechanism on tensors: clip, add noise, noise the labels."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.seeding import secret_normal

__all__ = ["GaussianNoise", "add_noise", "clip_smashed", "noisy_labels"]


def clip_smashed(smashed: Tensor, noise: GaussianNoise) -> Tensor:
    """Bound what one sample can contribute.

    "patch" and "sample" shorten vectors that are longer than `clip_norm` C and leave the others.
    "range" clamps every number to [-Delta/2, Delta/2], Delta being `clip_norm`: the papers'
    [0, Delta] after the fixed shift of Delta/2, which is taken back so that an upper segment sees
    smashed data centred as ever. Being public, the shift costs nothing.

    NaN and infinite numbers become zeros first, each by itself: clipping them would leave them as
    they are, and through crafted weights their places tell what the sample is.

    Parameters
    ----------
    smashed
        (b, N, d), floating point. Gradients flow through the clipping.

    Returns
    -------
    Tensor of the same shape, dtype and device.
    """
    bound = noise.clip_norm
    smashed = torch.where(smashed.isfinite(), smashed, 0.0)
    length: Tensor
    if noise.clip == "patch":
        length = torch.linalg.vector_norm(smashed, dim=2, keepdim=True)
    elif noise.clip == "sample":
        length = torch.linalg.vector_norm(smashed, dim=(1, 2), keepdim=True)
    elif noise.clip == "range":
        return smashed.clamp(-bound / 2, bound / 2)
    else:
        return smashed
    # Not min(1, C / length), whose gradient at length 0 is not a number.
    return smashed / (length / bound).clamp(min=1)


def add_noise(tensor: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
    """Add independent Gaussian noise to every number.

    Parameters
    ----------
    tensor
        Any shape, floating point. Of fewer bits than float32, the noise is added in float32 and
        the result rounded, so that the rounding comes after the noise.
    sigma
        Standard deviation, in the units of `tensor`; 0 adds nothing.
    generator
        On the CPU, for tests only: its past and future can be computed from what it drew. None
        draws what nobody can repeat (see `secret_normal`).

    Returns
    -------
    Tensor of the same shape, dtype and device; its gradient is `tensor`'s.
    """
    if sigma == 0:
        return tensor
    exact = torch.promote_types(tensor.dtype, torch.float32)
    if generator is None:
        drawn = secret_normal(tensor.shape, exact)
    else:
        drawn = torch.randn(tensor.shape, dtype=exact, generator=generator)
    return torch.add(tensor.to(exact), drawn.to(tensor.device), alpha=sigma).to(tensor.dtype)


def noisy_labels(
    one_hot: Tensor, lam: float, noise: GaussianNoise, generator: torch.Generator | None = None
) -> Tensor:
    """Scale labels by the mixing ratio, with noise after or before.

    Noise, then the clamp to 0..1 (unless `noise.clamp_labels` is false): `clamp(lam y + n)` for
    "after", `lam clamp(y + n)` for "before". The result does not sum to `lam`.

    Parameters
    ----------
    one_hot
        (b, L), floating point.
    lam
        The client's own mixing ratio, 1 without mixing.
    generator
        As in `add_noise`.

    Returns
    -------
    Tensor (b, L) of the same dtype and device.

    Source: DP-CutMixSL, equation 1 ("before"), Table 1 ("after") and section 6 (the clamp).
    """
    after = noise.label_noise == "after"
    noised = add_noise(lam * one_hot if after else one_hot, noise.sigma_y, generator)
    if noise.clamp_labels:
        noised = noised.clamp(0, 1)
    return noised if after else lam * noised
