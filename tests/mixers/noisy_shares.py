"""Shares of every kind, with noise around them, and smashed data for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    BoxShare,
    FullShare,
    NoisyShare,
    PatchShare,
    Share,
    WeightedShare,
)
from flwr_splitmix.privacy import GaussianNoise

N, D, L = 8, 4, 3
NOISE = GaussianNoise(sigma_s=0.5, sigma_y=0.25)
SILENT = replace(NOISE, sigma_s=0.0, sigma_y=0.0)
"""Clipping alone: shows what the noise is added to."""

PATCHES = PatchShare(lam=0.375, patches=N, seed=1, start=2, stop=5)
BEHIND = PatchShare(lam=0.375, patches=N, prefix=2, seed=1, start=2, stop=5)
BOX = BoxShare(lam=0.25, patches=N, columns=4, top=0, bottom=1, left=1, right=3, inside=True)
EMPTY = PatchShare(lam=0.0, patches=N, seed=1, start=4, stop=4)
CUTOUT = PatchShare(patches=N, seed=1, start=0, stop=4)  # its label is not weighted
SHARES_INSIDE: dict[str, Share] = {
    "full": FullShare(),
    "mixup": WeightedShare(lam=0.3),
    "cutmix": PATCHES,
    "cutmix, prefix": BEHIND,
    "cutmix, by sample": replace(PATCHES, per_sample=True),
    "box": BOX,
    "nothing": EMPTY,
    "cutout": CUTOUT,
}


def noisy(inner: Share, **changes: Any) -> NoisyShare:
    return NoisyShare.around(inner, replace(NOISE, **changes), L)


def tokens_of(share: Share) -> int:
    return N + getattr(share, "prefix", 0)


def smashed(share: Share, batch: int = 2, scale: float = 1.0, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (batch, tokens_of(share), D)
    return scale * torch.randn(shape, generator=source, dtype=torch.float64)
