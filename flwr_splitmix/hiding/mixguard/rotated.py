"""Secrets made with random rotations: one of many ways to meet MixGuard's constraints."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard.secret import Secret, decoding_of
from flwr_splitmix.seeding import secret_normal, secret_uniform

MIN_SHARE = 0.15
"""Least |w_l| relative to the largest, so that every message takes part in decoding."""

MAX_ALIGNMENT = 0.9
"""Bound on |cos(B^T 1, 1)|: with identity or permutation, adding the messages would decode."""

MIN_GAIN = 0.2
"""Least |1^T B^-1 1| by which the blinding is scaled: below it, the messages nearly vanish."""

MAX_REDRAWS = 2_000
"""Draws of each part before concluding that nothing acceptable exists."""


def draw_rotated(
    count: int,
    m: int,
    k: int,
    *,
    scale: tuple[float, float],
    eta: float,
    kappa: float,
    affine: bool,
) -> Secret:
    """Draw `count` secrets: `A` at random, and a blinding between two uniform rotations.

    The decoding weights may have both signs and partly cancel: 85 % of the secrets have a negative
    weight, and `sum_l |w_l|`, which amplifies the trunk's errors, has a median of 2.1. See
    `draw_positive` for secrets that amplify nothing.

    Parameters
    ----------
    scale, eta, kappa, affine
        As in `draw_secret`.

    Raises
    ------
    ValueError
        If 2,000 draws do not meet the constraints (m above about 20).

    Source: none; MixGuard constrains its secrets and names no distribution.
    """
    signs = draw_signs(count, m)
    target = (secret_uniform((count,)) * k).long()
    mixing = _mixing(signs, target, k, scale, eta)
    blinding = _accepted(
        count, lambda some: _blinding(some, m, kappa), lambda b: _blinds(b, affine), m
    )
    if affine:
        blinding = blinding * decoding_of(blinding).sum(-1)[:, None, None]
    return Secret(signs, mixing, blinding, target)


def draw_signs(count: int, m: int) -> Tensor:
    """Draw sign vectors (count, m), uniform among those with both signs; float64.

    Raises
    ------
    ValueError
        If 2,000 draws in a row lack a sign, which never happens in practice.
    """
    return _accepted(count, lambda some: _signs(some, m), _has_both_signs, m)


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
    one_hot = (torch.arange(k) == target[:, None]).double()[:, None]
    # The sum of two exponentials is Gamma(2); normalised among messages of one sign, Dirichlet(2).
    gamma = -(1 - secret_uniform((2, count, m, k))).log().sum(0)
    mixing = torch.zeros(count, m, k, dtype=torch.float64)
    for sign, weight in ((1.0, total + one_hot), (-1.0, total)):
        matches = (signs == sign).double()[:, :, None]
        drawn = gamma * matches
        even = matches / matches.sum(1, keepdim=True)
        mixing += weight * ((1 - eta) * drawn / drawn.sum(1, keepdim=True) + eta * even)
    return mixing


def _blinding(count: int, m: int, kappa: float) -> Tensor:
    """Draw `B` (n, m, m) between two rotations that are uniform (Haar), with cond(B) <= kappa."""
    singular = ((secret_uniform((count, 1, m)) - 0.5) * math.log(kappa)).exp()
    blinding: Tensor = (_rotation(count, m) * singular) @ _rotation(count, m)
    return blinding


def _rotation(count: int, m: int) -> Tensor:
    q, r = torch.linalg.qr(secret_normal((count, m, m), torch.float64))
    # QR does not fix the columns' signs; with R's diagonal positive, Q is uniform.
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
