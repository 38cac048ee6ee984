"""The sampler of secrets: draws, of several kinds, that meet MixGuard's constraints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

from flwr_splitmix.hiding.mixguard.positive import draw_positive
from flwr_splitmix.hiding.mixguard.rotated import draw_rotated
from flwr_splitmix.hiding.mixguard.secret import Secret

Sampler = Literal["rotated", "convex", "skewed"]

SCALE = (0.5, 1.5)
"""Range of a source's total weight among the messages of one sign; the target has one more."""

CANDIDATES = 64
"""Secrets drawn at once where only some are within the bounds."""

MAX_DRAWS = 2_000
"""Such draws after which there are taken to be none."""


def draw_secret(
    m: int,
    k: int,
    *,
    samples: int | None = None,
    sampler: Sampler = "rotated",
    support_norm: float = 1.0,
    scale: tuple[float, float] = SCALE,
    eta: float = 0.2,
    kappa: float = 4.0,
    affine: bool = True,
    max_distortion: float | None = None,
    max_leak: float | None = None,
    max_amplification: float | None = None,
) -> Secret:
    """Draw a batch's secret, or one for each of its samples, from the system's generator.

    Parameters
    ----------
    m, k
        Messages and sources.
    samples
        How many secrets: one for each sample of a batch; None is one for the whole batch.
    sampler
        "rotated": a random mixing under a blinding between random rotations (`draw_rotated`).
        "convex", "skewed": positive decoding weights that sum to one, and the target with weight
        one in every message (`draw_positive`). All meet the paper's constraints; the paper names
        no distribution.
    support_norm
        Of "convex" and "skewed": root mean square, over messages, of the supports' part over the
        target's. Larger ones hide the target better, and decode worse.
    scale
        Of "rotated": range of each source's total weight `c` among the messages of one sign.
        Larger ones hide the target better in each message, and leave the activations' natural
        scale.
    eta
        Of "rotated": part of the weights that is spread evenly, in [0, 1].
    kappa
        Of "rotated": bound on the blinding matrix's condition number.
    affine
        Of "rotated": scale the blinding so that the decoding sums to one, exact for affine trunks
        too. The others always do.
    max_distortion
        Bound on `Secret.distortion`, for trunks that normalise what they are given: decoding is
        then less wrong, and single messages point closer to the target. None: any.
    max_leak
        Bound on `Secret.leak`, below 1. None: any.
    max_amplification
        Bound on `Secret.amplification`, at least 1. None: any.

    Returns
    -------
    Secret with `s^T A = e_tau^T`, positive `A` and invertible `B`. Of "rotated" also
    `cond(B) <= kappa`, `min|w| >= 0.15 max|w|` and `|cos(B^T 1, 1)| < 0.9`.

    Raises
    ------
    ValueError
        If m or k is below 2, samples below 1, a sampler is unknown, a range is empty or not
        positive, m is so large that 2,000 draws meet no constraint (m beyond some 20), or bounds
        so narrow that too few of 128,000 secrets are within them.

    Source: MixGuard, section 4.2; the distributions are ours, the paper names none.
    """
    _check(m, k, samples, sampler, support_norm, scale, eta, kappa)
    bounds = {
        "max_distortion": max_distortion,
        "max_leak": max_leak,
        "max_amplification": max_amplification,
    }
    _check_bounds(bounds)
    count = 1 if samples is None else samples

    def draw(n: int) -> Secret:
        if sampler == "rotated":
            return draw_rotated(n, m, k, scale=scale, eta=eta, kappa=kappa, affine=affine)
        return draw_positive(n, m, k, support_norm=support_norm, skewed=sampler == "skewed")

    narrow = {name: bound for name, bound in bounds.items() if bound is not None}
    drawn = _within(count, draw, narrow) if narrow else draw(count)
    return drawn if samples is not None else drawn.of(0)


def _within(count: int, draw: Callable[[int], Secret], bounds: dict[str, float]) -> Secret:
    """Draw secrets until `count` of them are within the bounds."""
    accepted: list[Secret] = []
    missing = count
    for _ in range(MAX_DRAWS):
        candidates = draw(max(CANDIDATES, 4 * missing))
        chosen = _is_within(candidates, bounds).nonzero().squeeze(-1)[:missing]
        if len(chosen):
            accepted.append(candidates.of(chosen))
            missing -= len(chosen)
        if not missing:
            return Secret.join(accepted)
    named = " and ".join(f"{name} is {bound}" for name, bound in bounds.items())
    raise ValueError(
        f"{named}; of {MAX_DRAWS * CANDIDATES:,} secrets too few were below it, so it must be "
        "larger, or k or the supports' scale another"
    )


def _is_within(secrets: Secret, bounds: dict[str, float]) -> Tensor:
    sizes = {
        "max_distortion": secrets.distortion,
        "max_leak": secrets.leak,
        "max_amplification": secrets.amplification,
    }
    within = secrets.signs[:, 0] != 0  # all of them
    for name, bound in bounds.items():
        # A sum of weights that is one is one up to rounding.
        within = within & (sizes[name] <= bound * (1 + 1e-9))
    return within


def _check(
    m: int,
    k: int,
    samples: int | None,
    sampler: str,
    support_norm: float,
    scale: tuple[float, float],
    eta: float,
    kappa: float,
) -> None:
    if m < 2 or k < 2:
        raise ValueError(f"m is {m} and k is {k}; both must be at least 2")
    if samples is not None and samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1, or None for one secret")
    if sampler not in get_args(Sampler):
        raise ValueError(f"sampler is {sampler!r}; allowed are {', '.join(get_args(Sampler))}")
    if not 0 < support_norm < math.inf:
        raise ValueError(f"support_norm is {support_norm}; it must be positive and finite")
    low, high = scale
    if not 0 < low <= high < math.inf:
        raise ValueError(f"scale is {scale}; it must be a range (low, high) with 0 < low <= high")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta is {eta}; it must be between 0 and 1")
    if not 1 <= kappa < math.inf:
        raise ValueError(f"kappa is {kappa}; it must be at least 1 and finite")


def _check_bounds(bounds: dict[str, float | None]) -> None:
    for name, bound in bounds.items():
        if bound is not None and not bound > 0:
            raise ValueError(f"{name} is {bound}; it must be positive, or None")
