"""The places of shuffled patches, by a Gaussian of whole images around an expected one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.assignment import assign
from flwr_splitmix.attacks.images.gaussian import Gaussian

ROUNDS = 12
"""Assignments, each with costs under the last one; the best is kept, which is seldom later."""

MOST_PATCHES = 2048
"""Most patches that are assigned together: the time of an assignment is cubic in them."""


class Arranged(NamedTuple):
    """Patches in their places.

    Parameters
    ----------
    places
        int64 (M,): the place of each patch, i N + j for place j of row i.
    energies
        float64 (b,): how unlikely each row is, per number.
    """

    places: Tensor
    energies: Tensor


class OrderedRows(NamedTuple):
    """What shuffled rows show once their patches are in their places.

    Parameters
    ----------
    images
        (b, C, H, W).
    places
        int64 (b, N): the place of each slot's patch, numbered as `Origin.order`.
    sure
        (b,): higher if more likely.
    """

    images: Tensor
    places: Tensor
    sure: Tensor


class Model:
    """A Gaussian of what images differ from expected ones by, with its inverse.

    Of x in place f it gives alone and, given all other places, a quadratic cost: minus twice the
    logarithm of the density, up to a constant.
    """

    def __init__(self, gaussian: Gaussian) -> None:
        n, p = gaussian.mean.shape
        self.mean = gaussian.mean
        self.precision = torch.cholesky_inverse(torch.linalg.cholesky(gaussian.covariance))
        at = torch.arange(n)
        own = gaussian.covariance.reshape(n, p, n, p)[at, :, at]
        self.alone = _Quadratic(torch.linalg.inv(own))
        self.given = _Quadratic(self.precision.reshape(n, p, n, p)[at, :, at])

    def pulls(self, away: Tensor) -> tuple[Tensor, Tensor]:
        """Return each place's conditional mean given the others (N, P), and the energy.

        Parameters
        ----------
        away
            (N, P): an image less the mean.
        """
        force = (self.precision @ away.flatten()).reshape(away.shape)
        energy = (away * force).sum() / away.numel()
        solved = torch.linalg.solve(self.given.precision, force[..., None])[..., 0]
        return away - solved, energy


class _Quadratic:
    """Costs of patches at places: (x - c) A (x - c) - log det A, with A of each place (N, P, P)."""

    def __init__(self, precision: Tensor) -> None:
        self.precision = precision
        self.logdet = torch.logdet(precision)

    def squares(self, patches: Tensor) -> Tensor:
        """Return the part (M, N) of the costs of patches (M, P) that no centre changes."""
        turned = torch.einsum("ip,fpq->ifq", patches, self.precision)
        return torch.einsum("ifq,iq->if", turned, patches)

    def costs(self, patches: Tensor, squares: Tensor, centres: Tensor) -> Tensor:
        """Return the costs (M, N) around the centres (N, P)."""
        turned = torch.einsum("fpq,fq->fp", self.precision, centres)
        constant = (turned * centres).sum(1) - self.logdet
        return squares - 2 * patches @ turned.T + constant


def arrange(
    patches: Tensor, expected: Tensor, models: Sequence[Model], home: Tensor | None = None
) -> Arranged:
    """Assign patches (M, P) to the places of rows, M = b N, one to each.

    The cost of a patch at a place is first that of the place alone, then, in turns, that given
    what all other places hold; costs are averaged with the last ones, so that they settle.

    Parameters
    ----------
    expected
        float64 (b, N, P): an expectation of each row's image.
    models
        For each row, the Gaussian of what images differ from it by.
    home
        (M, b): logarithm of the probability that a patch is from a row; None if that says nothing.

    Source: ours; assignment by Kuhn's Hungarian method.
    """
    b, n, width = expected.shape
    means = [row + model.mean for row, model in zip(expected, models, strict=True)]
    known = 0 if home is None else -2 * home.repeat_interleave(n, 1)
    distinct = {id(model): model for model in models}
    alone = {name: model.alone.squares(patches) for name, model in distinct.items()}
    given = {name: model.given.squares(patches) for name, model in distinct.items()}
    costs = known + torch.cat(
        [
            model.alone.costs(patches, alone[id(model)], mean)
            for model, mean in zip(models, means, strict=True)
        ],
        1,
    )
    best: tuple[float, Arranged] = (math.inf, Arranged(torch.arange(b * n), torch.zeros(b)))
    for _ in range(ROUNDS):
        places = assign(-costs[None])[0]
        made = torch.empty(b * n, width, dtype=patches.dtype)
        made[places] = patches
        following, energies = [], []
        for row, model, mean in zip(made.reshape(b, n, width), models, means, strict=True):
            near, energy = model.pulls(row - mean)
            energies.append(energy)
            following.append(model.given.costs(patches, given[id(model)], mean + near))
        cost = float(torch.stack(energies).mean())
        if cost < best[0]:
            best = cost, Arranged(places, torch.stack(energies))
        costs = (costs + known + torch.cat(following, 1)) / 2
    return best[1]


def home_of(rows: int, patches: int, kept: int) -> Tensor:
    """Return log-probabilities (b N, b) that the patch of a slot is from a row.

    Parameters
    ----------
    rows, patches, kept
        Rows b of a batch, patches N of a row, and how many of its own a row keeps.
    """
    moved = (1 - kept / patches) / rows
    home = torch.full((rows, rows), moved, dtype=torch.float64)
    home += (kept / patches) * torch.eye(rows, dtype=torch.float64)
    return home.clamp_min(1e-12).log().repeat_interleave(patches, 0)
