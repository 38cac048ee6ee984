"""Secrets whose decoding weights are positive, so that decoding amplifies no error."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard.rotated import draw_signs
from flwr_splitmix.hiding.mixguard.secret import Secret
from flwr_splitmix.seeding import secret_normal, secret_uniform

EVEN = 0.2
"""Fraction of convex weights spread evenly, so that every message takes part in decoding."""

HEAVY = (0.5, 0.75)
"""Range of a skewed decoding's one heavy weight; the others share the rest."""

ASIDE = 0.3
"""For skewed supports: size of the part outside the direction that survives the plain sum."""


def draw_positive(count: int, m: int, k: int, *, support_norm: float, skewed: bool) -> Secret:
    """Draw `count` secrets by their messages: `S_l = h + delta_l` with `sum_l w_l delta_l = 0`.

    The decoding `w` is positive and sums to one, so first-order errors of the trunk cancel and
    none is amplified. `W` is drawn first; then signs `s` and a positive `A` with
    `s^T A = e_tau^T`, and the `B` with `W = B diag(s) A`.

    Parameters
    ----------
    support_norm
        Root mean square over messages of `|delta_l|` over `|h|`, assuming sources that are
        orthogonal and of equal norm.
    skewed
        False ("convex"): `w` is Dirichlet(1), in part even, and the supports are isotropic among
        those that the decoding cancels. True: one weight is heavy (0.5 to 0.75), and the supports
        are mostly along the one direction of these that survives the messages' plain sum, which
        otherwise would be nearly the target.

    Returns
    -------
    Secret with `samples` = count.

    Notes
    -----
    Where `A` is positive, `diag(s) A` has rows of one sign each: the rows of `B^-1` are in the
    cone `W^T r > 0` or in its opposite. With k <= m it is never empty; with k > m it is only for
    support columns of one half-space: each is redrawn until it is in that of a random direction,
    which for symmetric columns is to turn it round.

    Source: none; MixGuard constrains its secrets and names no distribution.
    """
    target = (secret_uniform((count,)) * k).long()
    decoding = _skewed_weights(count, m) if skewed else _convex_weights(count, m)
    supports = _supports(decoding, k - 1, skewed=skewed)
    if k > m:
        half = _in_complement(secret_normal((count, m, 1), torch.float64), decoding)
        supports = supports * (half.mT @ supports).sign()
    size = supports.flatten(1).norm(dim=1)[:, None, None] / m**0.5
    supports = supports * (support_norm / size)
    weights = _insert(torch.ones(count, m, 1, dtype=torch.float64), supports, target)
    if k < m:
        # Columns that mix nothing make W invertible; the decoding cancels them.
        idle = _in_complement(secret_normal((count, m, m - k), torch.float64), decoding)
        weights = torch.cat([weights, idle], dim=2)
    if k > m:
        inside = half.squeeze(-1) + decoding * _to_reach(half, weights, target)
    else:
        inside = torch.linalg.solve(weights.mT, 0.5 + secret_uniform((count, weights.shape[2], 1)))
        inside = inside.squeeze(-1)
    signs = draw_signs(count, m)
    rows = _rows(inside, weights, decoding, signs)
    mixing = signs.unsqueeze(-1) * (rows @ weights)
    # By rounding, `s^T A` is up to 5e-10 away from `e_tau` (m = k = 3), where rows are nearly
    # dependent, and `w^T W` up to 3e-5 (m = 3, k = 10).
    return Secret(signs, mixing[:, :, :k], torch.linalg.inv(rows), target)


def _convex_weights(count: int, m: int) -> Tensor:
    drawn = -(1 - secret_uniform((count, m))).log()
    even: Tensor = (1 - EVEN) * drawn / drawn.sum(1, keepdim=True) + EVEN / m
    return even


def _skewed_weights(count: int, m: int) -> Tensor:
    low, high = HEAVY
    heavy = low + (high - low) * secret_uniform((count, 1))
    others = (1 - heavy) * _convex_weights(count, m - 1) if m > 2 else 1 - heavy
    weights = torch.cat([heavy, others], dim=1)
    return weights.gather(1, secret_uniform((count, m)).argsort(dim=1))


def _supports(decoding: Tensor, number: int, *, skewed: bool) -> Tensor:
    """Draw support columns (n, m, number) that the decoding cancels; their size is not final."""
    count, m = decoding.shape
    free = _in_complement(secret_normal((count, m, number), torch.float64), decoding)
    if not skewed:
        return free
    surviving = _in_complement(torch.ones(count, m, 1, dtype=torch.float64), decoding)
    surviving = torch.nn.functional.normalize(surviving, dim=1)
    along = 0.5 + secret_uniform((count, 1, number))
    turned = torch.where(secret_uniform((count, 1, number)) < 0.5, -1.0, 1.0)
    drawn: Tensor = surviving * along * turned
    aside = free - surviving * (surviving.mT @ free)
    return drawn + ASIDE * aside


def _in_complement(columns: Tensor, decoding: Tensor) -> Tensor:
    """Project columns (n, m, j) onto the space that the decoding (n, m) cancels."""
    w = decoding.unsqueeze(-1)
    projected: Tensor = columns - w * (w.mT @ columns) / (w.mT @ w)
    return projected


def _insert(target_column: Tensor, supports: Tensor, target: Tensor) -> Tensor:
    """Put the target's column (n, m, 1) at its place among the supports'."""
    k = supports.shape[2] + 1
    slots = torch.arange(k)
    order = torch.where(slots == target[:, None], 0, slots + (slots < target[:, None]).long())
    columns = torch.cat([target_column, supports], dim=2)
    return columns.gather(2, order[:, None].expand(-1, target_column.shape[1], -1))


def _to_reach(half: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """Return how much of the decoding makes the target's entry of `W^T r` positive: (n, 1)."""
    reached = (weights.mT @ half).squeeze(-1)
    others = reached.scatter(1, target[:, None], 0.0).sum(1, keepdim=True) / (weights.shape[2] - 1)
    needed: Tensor = others - reached.gather(1, target[:, None])
    return needed


def _rows(inside: Tensor, weights: Tensor, decoding: Tensor, signs: Tensor) -> Tensor:
    """Return `B^-1` (n, m, m): rows whose products with `W` have the signs' sign, and sum to `w`.

    Negative rows are near the direction `inside` with `W^T inside > 0`; the positive ones share
    what is left. What sets rows apart is as large as half the cone allows.
    """
    count, m = signs.shape
    positive = (signs > 0).double().unsqueeze(-1)
    share = positive * (0.5 + secret_uniform((count, m, 1)))
    share = share / share.sum(1, keepdim=True)
    size = (1 - positive) * (0.5 + secret_uniform((count, m, 1)))
    base = size * inside.unsqueeze(1)
    apart = secret_normal((count, m, m), torch.float64)
    apart = apart - positive * (positive * apart).sum(1, keepdim=True) / positive.sum(
        1, keepdim=True
    )
    # First the negative rows, for which the positive ones must compensate.
    negative = base + (1 - positive) * apart * _room(base, apart, weights)
    whole = decoding + negative.sum(1)
    shared = share * whole.unsqueeze(1)
    room = _room(shared, apart, weights)
    least = torch.where(positive > 0, room, torch.inf).amin(1, keepdim=True)
    rows: Tensor = shared + positive * apart * least - negative
    return rows


def _room(base: Tensor, apart: Tensor, weights: Tensor) -> Tensor:
    """Return the multiple of `apart` each row may add: half of what keeps products positive."""
    products, moved = base @ weights, (apart @ weights).abs()
    moved = moved.clamp(min=1e-12)  # a sign's only message has no `apart`
    room: Tensor = 0.5 * (products / moved).amin(2, keepdim=True)
    return room
