"""The places of patches by what public images look like there, beside the patches placed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.assignment import assign
from flwr_splitmix.attacks.images.gaussian import Gaussian
from flwr_splitmix.attacks.images.painting import Painter

ROUNDS = 8
"""Most times that the patches of a mixture are placed anew."""

LIKELY = 0.2
"""Least probability of a class that is tried; the most likely one always is."""

MOST_TRIES = 4
"""Most ways to give the images of a mixture their classes that are tried."""


@dataclass(frozen=True)
class Placed:
    """A mixture's patches in their places.

    Parameters
    ----------
    places
        int64 (N,): the place of each patch.
    images
        float64 (k, N, P): the members' images, painted where they have no patch.
    cost
        Minus the logarithm of the probability, without constants.
    """

    places: Tensor
    images: Tensor
    cost: float


class PlacerByLooks:
    """Places patches, one in each place of the grid, so that public images' Gaussians like them.

    At first each patch goes where such patches are. Then each goes where it fits the image that
    those placed so far suggest, again and again.

    Parameters
    ----------
    painter
        Has the Gaussians.
    """

    def __init__(self, painter: Painter, budget: Budget) -> None:
        self._everything = _Looks(painter.everything)
        self._own = [_Looks(each) for each in painter.own]
        self._budget = budget

    def __call__(
        self, patches: Tensor, owners: Tensor, members: int, labels: Tensor | None = None
    ) -> Placed:
        """Place the patches of one mixture.

        Parameters
        ----------
        patches
            float64 (N, P), in any order.
        owners
            int64 (N,): which of the members each patch is from.
        members
            Number of members.
        labels
            (members, L): how likely each member is of each class; None if nothing is known.
        """
        best: Placed | None = None
        for looks in self._tries(members, labels):
            if best is not None and self._budget.over:
                break
            placed = self._placed(patches, owners, looks)
            if best is None or placed.cost < best.cost:
                best = placed
        assert best is not None, "there is at least one way"
        return best

    def _tries(self, members: int, labels: Tensor | None) -> list[Sequence[_Looks]]:
        if labels is None or not self._own:
            return [[self._everything] * members]
        likely = []
        for chances in labels:
            order = chances.argsort(descending=True).tolist()
            enough = [each for each in order if chances[each] > LIKELY]
            likely.append([self._own[each] for each in enough or order[:1]])
        return list(islice(product(*likely), MOST_TRIES))

    def _placed(self, patches: Tensor, owners: Tensor, looks: Sequence[_Looks]) -> Placed:
        held = [owners == member for member in range(len(looks))]
        costs = patches.new_empty(len(patches), len(patches))
        for own, each in zip(held, looks, strict=True):
            costs[own] = each.alone(patches[own])
        best: Placed | None = None
        for _ in range(ROUNDS):
            places = assign(-costs[None])[0]
            images, cost, anew = [], 0.0, torch.empty_like(costs)
            for own, each in zip(held, looks, strict=True):
                image, density = each.gaussian.filled(patches[own], places[own])
                images.append(image)
                cost -= density
                anew[own] = each.within(patches[own], image)
            if best is None or cost < best.cost:
                best = Placed(places, torch.stack(images), cost)
            if self._budget.over:
                break
            costs = (costs + anew) / 2
        assert best is not None, "there is at least one round"
        return best


class _Looks:
    """What a Gaussian says of a single patch, alone or within an image."""

    def __init__(self, gaussian: Gaussian) -> None:
        self.gaussian = gaussian

    @cached_property
    def _alone(self) -> tuple[Tensor, Tensor]:
        """Roots of the precisions of single patches, (N, P, P), and their densities, (N,)."""
        covariance = _blocks(self.gaussian.covariance, self.gaussian.mean.shape)
        return _roots(torch.linalg.inv(covariance))

    @cached_property
    def _precision(self) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(self.gaussian.covariance))

    @cached_property
    def _within(self) -> tuple[Tensor, Tensor, Tensor]:
        """As `_alone`, of patches given all others, and their covariances, (N, P, P)."""
        own = _blocks(self._precision, self.gaussian.mean.shape)
        return *_roots(own), torch.linalg.inv(own)

    def alone(self, patches: Tensor) -> Tensor:
        """Return the cost of patches (m, P) at each place, (m, N), whatever is beside them."""
        roots, densities = self._alone
        return _cost(patches, self.gaussian.mean, roots) - densities

    def within(self, patches: Tensor, image: Tensor) -> Tensor:
        """Return the cost of patches (m, P) at each place of an image (N, P): (m, N)."""
        roots, densities, covariances = self._within
        pull = (self._precision @ (image - self.gaussian.mean).flatten()).reshape(image.shape)
        expected = image - torch.einsum("npq,nq->np", covariances, pull)
        return _cost(patches, expected, roots) - densities


def _blocks(square: Tensor, shape: torch.Size) -> Tensor:
    """Return the blocks (N, P, P) on the diagonal of (N P, N P)."""
    n, p = shape
    return square.reshape(n, p, n, p).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _roots(precisions: Tensor) -> tuple[Tensor, Tensor]:
    roots = torch.linalg.cholesky(precisions)
    return roots, roots.diagonal(dim1=1, dim2=2).log().sum(1) * 2


def _cost(patches: Tensor, expected: Tensor, roots: Tensor) -> Tensor:
    """Return the square distances of patches (m, P) from those expected (N, P): (m, N)."""
    scaled = torch.einsum("mp,npq->nmq", patches, roots)
    centres = torch.einsum("np,npq->nq", expected, roots)
    return (scaled - centres[:, None]).square().sum(2).T
