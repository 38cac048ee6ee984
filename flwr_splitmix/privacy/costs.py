"""What one release costs, in closed form.

All noise here is Gaussian and none of it is sampled, so the Rényi divergence of a release is a
straight line through the origin, `order * rho`, and its slope `rho` is all that need be kept.
`rho` is half the squared shift of the mean in standard deviations, summed over what is seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_splitmix.privacy.events import Relation, Release, check_relation
from flwr_splitmix.privacy.noise import GaussianNoise

Floats = NDArray[np.float64]


def release_costs(
    release: Release,
    relation: Relation,
    ratios: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Floats:
    """Return the slopes of a release, or of many that differ in their masks only.

    Parameters
    ----------
    relation
        What neighbouring inputs are; decides the sensitivities (see `unit_sensitivity`).
    ratios
        The client's own ratios (...); None is `release.ratio`.
    groups
        Ratios of all members (..., k), for releases seen as a sum; None is `release.ratios`.

    Returns
    -------
    float64 (..., 2): `rho` of the smashed data and of the labels, times `release.times`. Infinite
    where there is no bound; zero where the ratio is zero, since nothing is sent then.

    Source: DP-CutMixSL, appendix E, with the sensitivity of a one-hot label (2, not its length)
    and with each placement of the noise and each view of the mixer told apart.
    """
    check_relation(relation)
    m = np.asarray(release.ratio if ratios is None else ratios, dtype=np.float64)
    members, squares = 1, m**2
    if release.seen == "sum" and release.family != "full":
        group = np.asarray(release.ratios if groups is None else groups, dtype=np.float64)
        members, squares = group.shape[-1], (group**2).sum(axis=-1)
    shifts = np.stack(
        [
            _smashed_shift(release, m, members) * unit_sensitivity(release, relation),
            _label_shift(release, m, members, squares) * (2.0 if relation == "replace" else 1.0),
        ],
        axis=-1,
    )
    bounded = [
        release.noise.clip != "none" and release.noise.sigma_s > 0,
        release.noise.sigma_y > 0,
    ]
    variances = np.array([release.noise.sigma_s, release.noise.sigma_y]) ** 2
    scale = np.where(bounded, release.times / (2 * np.where(variances > 0, variances, 1)), np.inf)
    return np.multiply(shifts, scale, out=np.zeros_like(shifts), where=shifts > 0)


def unit_sensitivity(release: Release, relation: Relation) -> float:
    """Return the squared distance, in L2, that one record can move one patch (or one sample).

    "patch" and "sample": (2 C)^2 for a replaced record, C^2 for one that is added to or removed
    from zeros. "range": Delta^2 d, whatever stands in place of the record. "none": 1, without
    meaning.
    """
    bound = release.noise.clip_norm
    if release.noise.clip == "range":
        return bound**2 * release.width
    return (2 * bound) ** 2 if relation == "replace" else bound**2


def _smashed_shift(release: Release, m: Floats, members: int) -> Floats:
    """Return squared sensitivity over noise variance, in units of one patch's (or sample's)."""
    noise: GaussianNoise = release.noise
    whole = noise.clip == "sample"
    tokens = 1.0 if whole else float(release.patches + release.prefix)
    if release.family == "full":
        return np.full_like(m, tokens)
    if release.family == "mixup":
        return tokens * m**2 / members
    # Only with noise on all positions does a patch, seen in the sum, hide in the others' noise.
    hidden = members if noise.smashed_noise == "all" else 1
    if whole:
        return np.where(m > 0, 1.0 / hidden, 0.0)  # the kept patches may carry all of the norm
    return release.patches * m / hidden + release.prefix * m**2 / members


def _label_shift(release: Release, m: Floats, members: int, squares: Floats) -> Floats:
    """Return squared scale over noise variance, in units of `sigma_y` squared."""
    noise = release.noise
    if release.family == "full":
        return np.ones_like(m)
    if noise.clamp_labels:
        # A sum of clamped labels is no function of the sum of plain ones: where the others' noise
        # was clamped away it hides nothing. Each label's own noise is all that counts.
        members, squares = 1, m**2
    if noise.label_noise == "after":
        return m**2 / members
    return np.divide(m**2, squares, out=np.zeros_like(m), where=m > 0)
