"""The samplers of secrets that meet MixGuard's constraints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard.positive import draw_positive
from flwr_splitmix.hiding.mixguard.rotated import draw_rotated
from flwr_splitmix.hiding.mixguard.secret import Secret
from flwr_splitmix.values import check_choice

Sampler = Literal["skewed", "convex", "rotated"]

SCALE = (0.5, 1.5)
"""Range of a source's total weight among the messages of one sign; the target has one more."""

FIRST_DRAWS = 64
"""Secrets drawn at once, at first, if only some are within the bounds."""

MAX_FRUITLESS_DRAWS = 10
"""Draws in a row that may have no secret within the bounds before the next ones grow."""

MAX_AT_ONCE = 4_096
"""Secrets drawn at once where none was within them: so many take little longer than a few."""

MAX_DRAWS = 2_000
"""Secrets tried before concluding that there are none, as a multiple of the first draw's."""

_MEASURES: dict[str, Callable[[Secret], Tensor]] = {
    "max_distortion": lambda secrets: secrets.distortion,
    "max_leak": lambda secrets: secrets.leak,
    "max_amplification": lambda secrets: secrets.amplification,
}
"""The quantity that each bound limits: float64 (n,) of n secrets."""


def draw_secret(
    m: int,
    k: int,
    *,
    samples: int | None = None,
    sampler: Sampler = "skewed",
    support_norm: float = 1.0,
    scale: tuple[float, float] = SCALE,
    eta: float = 0.2,
    kappa: float = 4.0,
    affine: bool = True,
    max_distortion: float | None = None,
    max_leak: float | None = None,
    max_amplification: float | None = None,
) -> Secret:
    """Draw a batch's secret, or one per sample, from the operating system's generator.

    Parameters
    ----------
    m, k
        Messages and sources.
    samples
        Number of secrets, one per sample of a batch; None draws one for the whole batch.
    sampler
        "skewed", "convex": positive decoding weights that sum to one, and the target with weight
        one in every message (`draw_positive`). "rotated": a random mixing under a blinding between
        random rotations (`draw_rotated`). All meet the paper's constraints; the paper names no
        distribution.
    support_norm
        For "convex" and "skewed": root mean square, over messages, of the supports' part over the
        target's. Larger values hide the target better and decode worse.
    scale
        For "rotated": range of each source's total weight `c` among the messages of one sign.
        Larger values hide the target better in each message, but leave the activations' natural
        scale.
    eta
        For "rotated": fraction of the weights that is spread evenly, in [0, 1].
    kappa
        For "rotated": bound on the blinding matrix's condition number.
    affine
        For "rotated": scale the blinding so that the decoding sums to one and is exact for affine
        trunks too. The other samplers always do.
    max_distortion
        Bound on `Secret.distortion`, for trunks that normalise their input: decoding is then more
        accurate, and single messages point closer to the target. None for no bound.
    max_leak
        Bound on `Secret.leak`, below 1. None for no bound.
    max_amplification
        Bound on `Secret.amplification`, at least 1. None for no bound.

    Returns
    -------
    Secret with `s^T A = e_tau^T`, positive `A` and invertible `B`. For "rotated" also
    `cond(B) <= kappa`, `min|w| >= 0.15 max|w|` and `|cos(B^T 1, 1)| < 0.9`.

    Raises
    ------
    ValueError
        If m or k is below 2, samples is below 1, the sampler is unknown, a range is empty or not
        positive, m is so large that 2,000 draws do not meet the constraints (m above about 20), or
        the bounds are so narrow that too few secrets are within them: of 128,000, or of 8,000 for
        each sample if there are more than 16.

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
    missing, drawn, empty = count, 0, 0
    size = max(FIRST_DRAWS, 4 * count)
    most = MAX_DRAWS * size
    while drawn < most:
        candidates = draw(min(size, most - drawn))
        drawn += size
        chosen = _is_within(candidates, bounds).nonzero().squeeze(-1)[:missing]
        if len(chosen):
            accepted.append(candidates.of(chosen))
            missing -= len(chosen)
            size, empty = max(FIRST_DRAWS, 4 * missing), 0
        else:
            empty += 1
            if empty > MAX_FRUITLESS_DRAWS:
                size = max(size, min(2 * size, MAX_AT_ONCE))
        if not missing:
            return Secret.join(accepted)
    named = " and ".join(f"{name} is {bound}" for name, bound in bounds.items())
    raise ValueError(
        f"{named}; of {most:,} secrets too few were below it, so it must be larger, or k or the "
        "supports' scale another"
    )


def _is_within(secrets: Secret, bounds: dict[str, float]) -> Tensor:
    within = torch.ones(len(secrets.signs), dtype=torch.bool)
    for name, bound in bounds.items():
        # Allow for rounding: sums of weights are one only up to it.
        within &= _MEASURES[name](secrets) <= bound * (1 + 1e-9)
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
    check_choice("sampler", sampler, get_args(Sampler))
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
