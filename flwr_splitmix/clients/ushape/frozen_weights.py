"""A number by which a server finds clients whose frozen weights differ from the rest's.

Frozen weights are not sent, so nothing else would show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flwr_splitmix.seeding import frozen_generator

MAX_SKETCH_DIFFERENCE = 0.001
"""Largest difference of sketches of the same weights.

One seed may give other last bits on another processor, or with another torch.
"""

_PERIOD = 4099  # a prime: no usual width divides it, so that rows get different signs


def sketch(weights: Mapping[str, Tensor]) -> float | None:
    """Return a number that is nearly the same for nearly the same weights, and rarely for others.

    Others differ by their values, not by names or scales: weights that are swapped, or all
    a multiple of the same, have the same number. Each weight is multiplied elementwise by fixed
    signs, and summed up, in units of its norm. Of two independent ones these sums are apart like
    normal variables of variance 2, so that they count as alike once in 1,800 times. The sum over
    all weights is rounded to 4 decimals: its reader learns some 16 bits of the weights, and
    can confirm a guess of them all.

    Returns
    -------
    None if there are no weights, or infinite ones or NaN. Left out are those that are not there
    (lazy, or on the device "meta"), complex or sparse, and such as are not plain tensors.
    """
    plain = [weight.detach() for weight in weights.values() if _is_plain(weight)]
    total = sum(map(_projected, plain))
    return round(total, 4) if plain and math.isfinite(total) else None


def _is_plain(weight: Tensor) -> bool:
    if is_lazy(weight) or type(weight.data) is not Tensor:
        return False
    return weight.layout == torch.strided and not weight.is_complex() and not weight.is_meta


def _projected(weight: Tensor) -> float:
    flat = weight.reshape(-1).float()
    norm = float(flat.norm())
    if math.isinf(norm) and bool(flat.isfinite().all()):
        return _projected(flat / flat.abs().max())  # the squares overflowed
    signs = _signs().to(flat.device)
    whole = flat.numel() // _PERIOD * _PERIOD
    rows, rest = flat[:whole].view(-1, _PERIOD), flat[whole:]
    total = rows.sum(0) @ signs + rest @ signs[: rest.numel()]
    return float(total) / norm if norm else 0.0


@cache
def _signs() -> Tensor:
    return torch.from_numpy(frozen_generator(0).choice((-1.0, 1.0), _PERIOD)).float()
