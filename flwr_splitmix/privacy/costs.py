"""The cost of one release, in closed form.

All noise is Gaussian and there is no sampling, so the Rényi divergence of a release is a straight
line through the origin, `order * rho`, and only its slope `rho` needs to be kept. `rho` is half
the squared shift of the mean in standard deviations, summed over what is seen.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_splitmix.privacy.events import Relation, Release, check_relation
from flwr_splitmix.privacy.noise import GaussianNoise

Floats = NDArray[np.float64]

_FLOAT32 = np.finfo(np.float32)

RESOLUTION = float(_FLOAT32.eps)
"""Relative resolution of the floats in which noise is added."""

SMALLEST, LARGEST = float(_FLOAT32.tiny), float(_FLOAT32.max)
"""Range of the normal numbers of those floats."""


def release_costs(
    release: Release,
    relation: Relation,
    ratios: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Floats:
    """Return the slopes of a release, or of many that differ only in their masks.

    Parameters
    ----------
    relation
        How neighbouring inputs differ; determines the sensitivities (see `unit_sensitivity`).
    ratios
        The client's own ratios (...); None uses `release.ratio`.
    groups
        Ratios of all members (..., k), for releases seen as a sum; None uses `release.ratios`.

    Returns
    -------
    float64 (..., 2): `rho` of the smashed data and of the labels, times `release.times`. Infinite
    if there is no bound: without clipping or noise, or with noise below the resolution of float32
    relative to what it is added to. Zero if the ratio is zero, since nothing is sent.

    Source: DP-CutMixSL, appendix E, with the sensitivity of a one-hot label (2, not its length)
    and with separate cases for each placement of the noise and each view of the mixer.
    """
    check_relation(relation)
    m = np.asarray(release.ratio if ratios is None else ratios, dtype=np.float64)
    group = None
    if release.seen == "sum" and release.family != "full":
        group = np.asarray(release.ratios if groups is None else groups, dtype=np.float64)
    noise = release.noise
    # A number too large for a float is a cost without bound, and one too small is none.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        smashed = _smashed_cost(release, m, 1 if group is None else group.shape[-1], relation)
        labels = _label_cost(release, m, group, relation)
    if noise.clip == "none" or not hides(noise.sigma_s, noise.clip_norm):
        smashed = np.where(m > 0, np.inf, 0.0)
    if not hides(noise.sigma_y, 1.0):
        labels = np.where(m > 0, np.inf, 0.0)
    costs: Floats = np.stack([smashed, labels], axis=-1) * release.times
    return costs


def unit_sensitivity(release: Release, relation: Relation) -> float:
    """Return the largest L2 distance by which one record can move one patch (or one sample).

    "patch" and "sample": 2 C for a replaced record, C for one replaced by an empty one (zeros).
    "range": Delta sqrt(d), whatever replaces the record. "none": C, without meaning.
    """
    bound = release.noise.clip_norm
    if release.noise.clip == "range":
        return bound * math.sqrt(release.width)
    return 2 * bound if relation == "replace" else bound


def hides(sigma: float, bound: float) -> bool:
    """Return whether noise exceeds the rounding of numbers as large as `bound`.

    The closed forms hold for real numbers. In floats, noise below their resolution leaves the data
    unchanged, and so does a sigma or a bound outside the normal numbers.
    """
    return (
        SMALLEST <= bound <= LARGEST
        and SMALLEST <= sigma <= LARGEST
        and sigma >= RESOLUTION * bound
    )


def check_bound(name: str, bound: float) -> None:
    """Raise ValueError if float32, in which smashed data are clipped, has no such bound.

    Parameters
    ----------
    name
        The name of the bound in the error message.
    """
    if not SMALLEST <= bound <= LARGEST:
        raise ValueError(
            f"{name} is {bound:g}, but smashed data are clipped in float32, which cannot clip to "
            f"that; give a bound from {SMALLEST:.2g} to {LARGEST:.2g}"
        )


def check_drawn(name: str, sigma: float) -> None:
    """Raise ValueError if noise of this standard deviation is too large for float32.

    Parameters
    ----------
    name
        Its name in the error message.
    """
    if sigma > LARGEST:
        raise ValueError(
            f"{name} is {sigma:g}, but noise is added in float32, where such noise is infinite; "
            f"give at most {LARGEST:.2g}"
        )


def _half_square(shift: ArrayLike) -> Floats:
    """Return the slope for a mean shifted by `shift` standard deviations."""
    return 0.5 * np.square(np.asarray(shift, dtype=np.float64))


def _smashed_cost(release: Release, m: Floats, members: int, relation: Relation) -> Floats:
    """Return the slope of the smashed data of one release.

    Ratios are formed before squaring: the square of a small sigma underflows to 0.
    """
    noise: GaussianNoise = release.noise
    if not noise.sigma_s:
        return np.full_like(m, np.inf)
    unit = unit_sensitivity(release, relation) / noise.sigma_s
    whole = noise.clip == "sample"
    tokens = 1.0 if whole else float(release.patches + release.prefix)
    if release.family == "full":
        return np.broadcast_to(tokens * _half_square(unit), m.shape)
    if release.family == "mixup":
        return tokens * _half_square(m * unit) / members
    # Only with noise on all positions does a patch, seen in the sum, hide in the others' noise.
    hidden = members if noise.smashed_noise == "all" else 1
    if whole:  # the kept patches may carry all of the norm
        return np.where(m > 0, _half_square(unit) / hidden, 0.0)
    patch_cost = np.where(m > 0, release.patches * m * (_half_square(unit) / hidden), 0.0)
    if not release.prefix:
        return patch_cost
    return patch_cost + release.prefix * _half_square(m * unit) / members


def _label_cost(release: Release, m: Floats, group: Floats | None, relation: Relation) -> Floats:
    """Return the slope of the labels of one release: one-hot ones are sqrt 2 apart, 1 from 0."""
    noise = release.noise
    if not noise.sigma_y:
        return np.full_like(m, np.inf)
    apart, unit = (2.0 if relation == "replace" else 1.0), 1 / noise.sigma_y
    if release.family == "full":
        return np.broadcast_to(apart * _half_square(unit), m.shape)
    if noise.clamp_labels:
        # A sum of clamped labels is not a function of the sum of plain ones: noise of others that
        # was clamped away hides nothing. Only each label's own noise counts.
        group = None
    if noise.label_noise == "after":
        return apart * _half_square(m * unit) / (1 if group is None else group.shape[-1])
    if group is None:
        return np.where(m > 0, apart * _half_square(unit), 0.0)
    most = np.where(m > 0, group.max(axis=-1), 1.0)
    norm = np.sqrt(np.square(group / most[..., None]).sum(axis=-1))
    return np.where(m > 0, apart * _half_square(m / most / norm * unit), 0.0)
