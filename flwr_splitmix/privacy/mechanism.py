"""The Gaussian mechanism on tensors: clipping, noise, and noisy labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flwr_splitmix.privacy.noise import GaussianNoise
from flwr_splitmix.seeding import secret_normal

__all__ = [
    "GaussianNoise",
    "add_noise",
    "clip_smashed",
    "label_range",
    "noisy_labels",
    "smashed_limit",
]

FARTHEST = 9.0
"""No noise is this many standard deviations from 0: `secret_normal` ends at 8.6."""

ROUNDING = 1.01
"""Factor by which a number may become larger when it is rounded; bfloat16 needs 1.004."""


def clip_smashed(smashed: Tensor, noise: GaussianNoise) -> Tensor:
    """Bound the contribution of one sample.

    "patch" and "sample" scale vectors with a norm above `clip_norm` C down to it. "range" clamps
    every number to [-Delta/2, Delta/2], Delta being `clip_norm`: the papers' interval [0, Delta]
    after a fixed shift by Delta/2, undone so that an upper segment sees smashed data with
    unchanged centre. As the shift is public, it costs nothing.

    NaN and infinite numbers are first replaced by zeros, individually: clipping would keep them,
    and with crafted weights their positions could reveal the sample.

    Parameters
    ----------
    smashed
        (b, N, d), float32 or wider: rounding to fewer bits could exceed the bound. Gradients flow
        through the clipping.

    Returns
    -------
    Tensor of the same shape, dtype and device.
    """
    bound = noise.clip_norm
    smashed = torch.where(smashed.isfinite(), smashed, 0.0)
    if noise.clip == "patch":
        length = _length(smashed, (2,))
    elif noise.clip == "sample":
        length = _length(smashed, (1, 2))
    elif noise.clip == "range":
        return smashed.clamp(-bound / 2, bound / 2)
    else:
        return smashed
    # Not min(1, C / length), whose gradient at length 0 is not a number.
    return smashed / (length / bound).clamp(min=1)


def _length(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return L2 norms over `dims`, which are kept.

    In float32 the square of a number below 1e-23 is 0. Without the factor, such vectors would have
    length 0, and no bound would clip them.
    """
    small = vectors.detach().abs().amax(dims, keepdim=True) < 2.0**-40
    factor = torch.where(small, 2.0**85, 1.0).to(vectors.dtype)  # exact: powers of two
    length: Tensor = torch.linalg.vector_norm(vectors * factor, dim=dims, keepdim=True)
    return length / factor


def add_noise(tensor: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
    """Add independent Gaussian noise to every number.

    Parameters
    ----------
    tensor
        Any shape, floating point. For dtypes smaller than float32, the noise is added in float32
        and the result rounded, so that rounding follows the noise.
    sigma
        Standard deviation, in the units of `tensor`; 0 adds nothing.
    generator
        On the CPU, for tests only: its draws reveal all its past and future draws. None draws
        noise that cannot be reproduced (see `secret_normal`).

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
    """Scale labels by the mixing ratio, adding noise after or before.

    Noise, then the clamp to 0..1 (unless `noise.clamp_labels` is false): `clamp(lam y + n)` for
    "after", `lam clamp(y + n)` for "before". The result does not sum to `lam`.

    Parameters
    ----------
    one_hot
        (b, L), floating point.
    lam
        The client's own mixing ratio, 1 without mixing.
    generator
        As for `add_noise`.

    Returns
    -------
    Tensor (b, L) of the same dtype and device.

    Source: DP-CutMixSL, equation 1 ("before"), Table 1 ("after") and section 6 (the clamp).
    """
    after = noise.label_noise == "after"
    noised = add_noise(lam * one_hot if after else one_hot, noise.sigma_y, generator)
    if noise.clamp_labels:
        noised = noised.clamp(0, 1)
    if after:
        return noised
    # Zero times a number keeps its sign.
    return lam * noised if lam else torch.zeros_like(noised)


def smashed_limit(noise: GaussianNoise) -> float:
    """Return the largest magnitude of a clipped number with noise, even if rounded on its way.

    Infinite without clipping. A mixing ratio makes numbers smaller before the noise, never larger.
    """
    clipped = {"patch": noise.clip_norm, "sample": noise.clip_norm, "range": noise.clip_norm / 2}
    return ROUNDING * (clipped.get(noise.clip, math.inf) + FARTHEST * noise.sigma_s)


def label_range(noise: GaussianNoise) -> tuple[float, float]:
    """Return the smallest and the largest number of `noisy_labels`, even if rounded.

    They are those of any mixing ratio, so that they reveal nothing of a client's.
    """
    if noise.clamp_labels:
        return 0.0, 1.0
    farthest = FARTHEST * noise.sigma_y
    return -ROUNDING * farthest, ROUNDING * (1 + farthest)
