"""Gaussians of public patches, by a few numbers a place: which patches are likely together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.painting.gaussian import Gaussian

PIECES = 6
"""Principal components of a place: those behind them are little but noise of few images."""


class JointLikelihood(NamedTuple):
    """Log densities of Gaussians at some places of images, and of each place given the others.

    Parameters
    ----------
    density
        float64 (b, L): logarithm of the density of all places, up to the same constant for each
        number of places.
    beside
        float64 (b, N, L): likewise of each place, in or out, given all the others of these.
    """

    density: Tensor
    beside: Tensor


@dataclass(frozen=True)
class PatchGaussians:
    """Several Gaussians of images, each place of which is a few principal components.

    Parameters
    ----------
    centre
        float64 (N, P): what is subtracted from patches.
    basis
        float64 (N, P, q), orthonormal.
    means
        float64 (L, N, q): of each Gaussian.
    covariances
        float64 (L, N q, N q).
    """

    centre: Tensor
    basis: Tensor
    means: Tensor
    covariances: Tensor

    @classmethod
    def of(cls, everything: Gaussian, by_class: Sequence[Gaussian], pieces: int = PIECES) -> Self:
        """Take the components of Gaussians, by place, in which images of all kinds vary most.

        Parameters
        ----------
        everything
            Determines the components.
        by_class
            The L Gaussians to take them of.
        """
        places, numbers = everything.mean.shape
        wide = everything.covariance.reshape(places, numbers, places, numbers)
        blocks = wide.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        basis = torch.linalg.eigh(blocks).eigenvectors[..., -min(pieces, numbers) :]
        means = torch.stack([each.mean - everything.mean for each in by_class])
        covariances = [
            torch.einsum(
                "npa,npmr,mrc->namc", basis, each.covariance.reshape(wide.shape), basis
            ).flatten(2).flatten(0, 1)
            for each in by_class
        ]  # fmt: skip
        return cls(
            everything.mean,
            basis,
            torch.einsum("lnp,npq->lnq", means, basis),
            torch.stack(covariances),
        )

    def blurred(self, errors: Tensor | None) -> Self:
        """Return the Gaussians of patches with independent errors, of covariances (N, P, P)."""
        if errors is None:
            return self
        covariances = self.covariances.clone()
        _blocks(covariances, self.basis.shape[2]).add_(self.basis.mT @ errors @ self.basis)
        return replace(self, covariances=covariances)

    def components(self, patches: Tensor) -> Tensor:
        """Return the components (b, N, q) of patches (b, N, P)."""
        return torch.einsum("bnp,npq->bnq", patches.double().cpu() - self.centre, self.basis)

    def together(self, components: Tensor, is_held: Tensor) -> JointLikelihood:
        """Return how likely the places of a mask are, and each place beside those of the mask.

        Parameters
        ----------
        components
            (b, N, q).
        is_held
            bool (N,): the mask.
        """
        rows, places, pieces = components.shape
        wide = is_held[:, None].expand(places, pieces).flatten()
        apart = (components - self.means[:, None]).flatten(2)  # (L, b, N q)
        among = self.covariances[:, wide]
        root = torch.linalg.cholesky(among[:, :, wide])
        inverse = torch.cholesky_inverse(root)
        force = apart[:, :, wide] @ inverse
        logs = root.diagonal(dim1=1, dim2=2).log().sum(1)
        density = -(force * apart[:, :, wide]).sum(2) / 2 - logs[:, None]
        beside = components.new_empty(len(self.means), rows, places)
        # A place in the mask is compared with the rest of the mask, by blocks of the precision.
        beside[:, :, is_held] = -_quadratic(
            _by_place(force, pieces), _blocks(inverse, pieces), inverted=True
        )
        # A place out of it is compared with all of it.
        across = among[:, :, ~wide]
        residuals = apart[:, :, ~wide] - force @ across
        shared = _by_place(inverse @ across, pieces)
        covered = torch.einsum("ldnp,ldnq->lnpq", _by_place(across, pieces), shared)
        conditional = (
            _blocks(self.covariances[:, ~wide][:, :, ~wide].contiguous(), pieces) - covered
        )
        beside[:, :, ~is_held] = -_quadratic(
            _by_place(residuals, pieces), conditional, inverted=False
        )
        return JointLikelihood(density.T, beside.permute(1, 2, 0))

    def pairs(self, components: Tensor) -> Tensor:
        """Return how much likelier two places are together than apart, over all rows: (N, N).

        It takes the first Gaussian.
        """
        places, pieces = components.shape[1:]
        apart = components - self.means[0]
        wide = self.covariances[0].reshape(places, pieces, places, pieces).permute(0, 2, 1, 3)
        blocks = wide.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
        alone = _quadratic(apart[None], blocks[None], inverted=False)[0].sum(0)
        one, two = torch.triu_indices(places, places, 1)
        both = torch.cat(
            [
                torch.cat([blocks[one], wide[one, two]], 2),
                torch.cat([wide[two, one], blocks[two]], 2),
            ],
            1,
        )
        pair = torch.cat([apart[:, one], apart[:, two]], 2)
        joint = _quadratic(pair[None], both[None], inverted=False)[0].sum(0)
        alike = components.new_zeros(places, places)
        alike[one, two] = alone[one] + alone[two] - joint
        return alike + alike.T


def _blocks(wide: Tensor, pieces: int) -> Tensor:
    """Return the blocks (L, M, q, q) on the diagonal of (L, M q, M q), a view."""
    places = wide.shape[1] // pieces
    parts = wide.view(len(wide), places, pieces, places, pieces)
    return parts.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _by_place(numbers: Tensor, pieces: int) -> Tensor:
    """Return the numbers (L, b, M q) of places as (L, b, M, q)."""
    return numbers.reshape(*numbers.shape[:2], numbers.shape[2] // pieces, pieces)


def _quadratic(apart: Tensor, matrices: Tensor, *, inverted: bool) -> Tensor:
    """Return minus the logarithms of Gaussian densities, without constants: (L, b, M).

    Parameters
    ----------
    apart
        (L, b, M, q): distances from the mean, or if `inverted`, these multiplied by precisions.
    matrices
        (L, M, q, q): covariances, or if `inverted`, precisions.
    """
    root = torch.linalg.cholesky(matrices)
    solved = torch.linalg.solve_triangular(root, apart.permute(0, 2, 3, 1), upper=False)
    logs = root.diagonal(dim1=2, dim2=3).log().sum(2)
    sign = -1 if inverted else 1
    costs: Tensor = solved.square().sum(2) / 2 + sign * logs[..., None]
    return costs.transpose(1, 2)
