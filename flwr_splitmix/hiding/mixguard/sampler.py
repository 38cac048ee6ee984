"""The sampler of secrets: uniform draws among those that meet MixGuard's constraints."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard.secret import Secret, decoding_of
from flwr_splitmix.seeding import secret_normal, secret_uniform

SCALE = (0.5, 1.5)
"""Range of a source's total weight among the messages of one sign; the target has one more."""

MIN_SHARE = 0.15
"""Least |w_l| relative to the greatest: no message may be idle in the decoding."""

MAX_ALIGNMENT = 0.9
"""Bound on |cos(B^T 1, 1)|: of an identity or a permutation the server would add the messages."""

MIN_GAIN = 0.2
"""Least |1^T B^-1 1| by which the blinding may be scaled: below, the messages nearly vanish."""

MAX_REDRAWS = 2_000
"""Draws of each part after which nothing acceptable is taken to exist."""

CANDIDATES = 64
"""Secrets drawn at once where only some distort little enough."""

MAX_DRAWS = 2_000
"""Such draws after which there are taken to be none."""


def draw_secret(
    m: int,
    k: int,
    *,
    samples: int | None = None,
    scale: tuple[float, float] = SCALE,
    eta: float = 0.2,
    kappa: float = 4.0,
    affine: bool = True,
    max_distortion: float | None = None,
) -> Secret:
    """Draw a batch's secret, or one for each of its samples, from the system's generator.

    Parameters
    ----------
    m, k
        Messages and sources.
    samples
        How many secrets: one for each sample of a batch; None is one for the whole batch.
    scale
        Range of each source's total weight `c` among the messages of one sign. Larger ones hide
        the target better in each message, and leave the activations' natural scale.
    eta
        Part of the weights that is spread evenly, in [0, 1].
    kappa
        Bound on the blinding matrix's condition number.
    affine
        Scale the blinding so that the decoding sums to one: exact for affine trunks too.
    max_distortion
        Bound on `Secret.distortion`, for trunks that normalise what they are given: decoding is
        then less wrong, and single messages point closer to the target. None: any (the paper).

    Returns
    -------
    Secret with `s^T A = e_tau^T`, positive `A`, `cond(B) <= kappa`, `min|w| >= 0.15 max|w|` and
    `|cos(B^T 1, 1)| < 0.9`.

    Raises
    ------
    ValueError
        If m or k is below 2, samples below 1, a range is empty or not positive, m is so large
        that 2,000 draws meet no constraint (m beyond some 20), or `max_distortion` so small that
        too few of 128,000 secrets meet it.

    Source: MixGuard, section 4.2; the distributions are ours, the paper names none.
    """
    _check(m, k, samples, scale, eta, kappa, max_distortion)
    count = 1 if samples is None else samples

    def draw(n: int) -> Secret:
        signs = _accepted(n, lambda some: _signs(some, m), _has_both_signs, m)
        target = (secret_uniform((n,)) * k).long()
        mixing = _mixing(signs, target, k, scale, eta)
        blinding = _accepted(
            n, lambda some: _blinding(some, m, kappa), lambda b: _blinds(b, affine), m
        )
        if affine:
            blinding = blinding * decoding_of(blinding).sum(-1)[:, None, None]
        return Secret(signs, mixing, blinding, target)

    drawn = draw(count) if max_distortion is None else _faithful(count, draw, max_distortion)
    return drawn if samples is not None else drawn.of(0)


def _faithful(count: int, draw: Callable[[int], Secret], bound: float) -> Secret:
    """Draw secrets until `count` of them distort no more than `bound`."""
    faithful: list[Secret] = []
    missing = count
    for _ in range(MAX_DRAWS):
        candidates = draw(max(CANDIDATES, 4 * missing))
        chosen = (candidates.distortion <= bound).nonzero().squeeze(-1)[:missing]
        if len(chosen):
            faithful.append(candidates.of(chosen))
            missing -= len(chosen)
        if not missing:
            return Secret.join(faithful)
    raise ValueError(
        f"max_distortion is {bound}; of {MAX_DRAWS * CANDIDATES:,} secrets too few were below it, "
        "so it must be larger, or k or the scale smaller"
    )


def _check(
    m: int,
    k: int,
    samples: int | None,
    scale: tuple[float, float],
    eta: float,
    kappa: float,
    max_distortion: float | None,
) -> None:
    if m < 2 or k < 2:
        raise ValueError(f"m is {m} and k is {k}; both must be at least 2")
    if samples is not None and samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1, or None for one secret")
    low, high = scale
    if not 0 < low <= high < math.inf:
        raise ValueError(f"scale is {scale}; it must be a range (low, high) with 0 < low <= high")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta is {eta}; it must be between 0 and 1")
    if not 1 <= kappa < math.inf:
        raise ValueError(f"kappa is {kappa}; it must be at least 1 and finite")
    if max_distortion is not None and not max_distortion > 0:
        raise ValueError(f"max_distortion is {max_distortion}; it must be positive, or None")


def _accepted(
    count: int, draw: Callable[[int], Tensor], accept: Callable[[Tensor], Tensor], m: int
) -> Tensor:
    """Redraw those of `count` draws that are not accepted, until all are."""
    drawn = draw(count)
    waiting = (~accept(drawn)).nonzero().squeeze(-1)
    for _ in range(MAX_REDRAWS):
        if not len(waiting):
            return drawn
        drawn[waiting] = draw(len(waiting))
        waiting = waiting[~accept(drawn[waiting])]
    raise ValueError(
        f"no secret met the constraints in {MAX_REDRAWS} draws with m={m}; use fewer messages"
    )


def _signs(count: int, m: int) -> Tensor:
    return torch.where(secret_uniform((count, m)) < 0.5, -1.0, 1.0).double()


def _has_both_signs(signs: Tensor) -> Tensor:
    return signs.sum(-1).abs() < signs.shape[-1]


def _mixing(
    signs: Tensor, target: Tensor, k: int, scale: tuple[float, float], eta: float
) -> Tensor:
    """Draw `A` (n, m, k).

    Each column has weight c on the negative messages, and c on the positive ones, or c + 1 if it
    is the target's.
    """
    count, m = signs.shape
    low, high = scale
    total = low + (high - low) * secret_uniform((count, 1, k))
    own = (torch.arange(k) == target[:, None]).double()[:, None]
    # The sum of two exponentials is Gamma(2); normalised among messages of one sign, Dirichlet(2).
    gamma = -(1 - secret_uniform((2, count, m, k))).log().sum(0)
    mixing = torch.zeros(count, m, k, dtype=torch.float64)
    for sign, weight in ((1.0, total + own), (-1.0, total)):
        here = (signs == sign).double()[:, :, None]
        drawn = gamma * here
        even = here / here.sum(1, keepdim=True)
        mixing += weight * ((1 - eta) * drawn / drawn.sum(1, keepdim=True) + eta * even)
    return mixing


def _blinding(count: int, m: int, kappa: float) -> Tensor:
    """Draw `B` (n, m, m) between two rotations that are uniform (Haar), with cond(B) <= kappa."""
    singular = ((secret_uniform((count, 1, m)) - 0.5) * math.log(kappa)).exp()
    blinding: Tensor = (_rotation(count, m) * singular) @ _rotation(count, m)
    return blinding


def _rotation(count: int, m: int) -> Tensor:
    q, r = torch.linalg.qr(secret_normal((count, m, m), torch.float64))
    # QR leaves the columns' signs to the library; with R's diagonal positive, Q is uniform.
    rotation: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return rotation


def _blinds(blinding: Tensor, affine: bool) -> Tensor:
    decoding = decoding_of(blinding)
    size = decoding.abs()
    column_sums = blinding.sum(-2)  # B^T 1
    cosine = column_sums.sum(-1) / (column_sums.norm(dim=-1) * math.sqrt(blinding.shape[-1]))
    accepted: Tensor = (size.amin(-1) >= MIN_SHARE * size.amax(-1)) & (cosine.abs() < MAX_ALIGNMENT)
    if affine:
        accepted = accepted & (decoding.sum(-1).abs() >= MIN_GAIN)
    return accepted
