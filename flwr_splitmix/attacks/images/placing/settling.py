"""Places of patches, found in turns: where each is likely alone, then beside those placed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.painting.gaussian import Gaussian
from flwr_splitmix.attacks.images.placing.assignment import assign

MadeT = TypeVar("MadeT")


def settled(
    costs: Tensor, look: Callable[[Tensor], tuple[float, Tensor, MadeT]], turns: int
) -> MadeT:
    """Assign patches to places, in turns, and return what was made of the likeliest places.

    Costs are averaged with the last ones, so that they settle.

    Parameters
    ----------
    costs
        (M, M): of each patch at each place, at first.
    look
        From the place of each patch, int64 (M,), to the cost of all, the costs (M, M) of each patch
        at each place given these, and what is made of them.
    turns
        At least 1.

    Source: ours; assignment by Kuhn's Hungarian method.
    """
    cost, given_costs, best = look(assign(-costs[None])[0])
    for _ in range(turns - 1):
        costs = (costs + given_costs) / 2
        following, given_costs, candidate = look(assign(-costs[None])[0])
        if following < cost:
            cost, best = following, candidate
    return best


class PatchLikelihoods:
    """A Gaussian's densities of single patches: alone, and given what all other places hold.

    Both are quadratic costs: minus twice the logarithm of the density, up to a constant.
    """

    def __init__(self, gaussian: Gaussian) -> None:
        self.gaussian = gaussian
        self.mean = gaussian.mean

    @cached_property
    def precision(self) -> Tensor:
        """The inverse of the covariance, (N P, N P)."""
        return torch.cholesky_inverse(torch.linalg.cholesky(self.gaussian.covariance))

    @cached_property
    def alone(self) -> Quadratic:
        """The costs of patches whatever is beside them, around `mean`."""
        return Quadratic(torch.linalg.inv(_blocks(self.gaussian.covariance, self.mean.shape)))

    @cached_property
    def given(self) -> Quadratic:
        """The costs of patches given all others, around `expected`."""
        return Quadratic(_blocks(self.precision, self.mean.shape))

    def expected(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return each patch's mean given all others of an image, and how unlikely the image is.

        Parameters
        ----------
        image
            (N, P).

        Returns
        -------
        (N, P); and a scalar, per number.
        """
        away = image - self.mean
        force = (self.precision @ away.flatten()).reshape(away.shape)
        solved = torch.linalg.solve(self.given.precision, force[..., None])[..., 0]
        return image - solved, (away * force).sum() / away.numel()


class Quadratic:
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


def _blocks(square: Tensor, shape: torch.Size) -> Tensor:
    """Return the blocks (N, P, P) on the diagonal of (N P, N P)."""
    n, p = shape
    at = torch.arange(n)
    return square.reshape(n, p, n, p)[at, :, at]
